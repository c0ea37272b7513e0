"""What `perf script` says, as shares."""

from __future__ import annotations

from xml.etree import ElementTree

import page
import pytest
from shares import Sample, counted, samples

SAID = [
    "python3 ",
    "\tffffffff816b975a ksys_read ([kernel.kallsyms])",
    "\t           f82ad read (/usr/lib/libc.so.6)",
    "\t           1cfd6e main (/usr/bin/python3.11)",
    "",
    "C2 CompilerThre ",
    "\t    7fb5509bd640 void a(b)::c (inlined) (/usr/lib/jvm/libjvm.so)",
    "\t    7fb551056240 [unknown] ([unknown])",
    "",
    "swapper ",
    "\tffffffff813a2413 idle ([kernel.kallsyms])",
    "",
    "python3 ",
    "\t           194b8b walk (/usr/lib/deleted.so (deleted))",
]


def test_the_kernels_time_is_put_to_the_library_that_called_it() -> None:
    assert list(samples(f"{line}\n" for line in SAID)) == [
        Sample("python3", "libc.so.6", True, "ksys_read"),
        Sample("C2 CompilerThre", "libjvm.so", False, "void a(b)::c"),
        Sample("swapper", "(kernel alone)", True, "idle"),
        Sample("python3", "deleted.so (deleted)", False, "walk"),
    ]


def test_places_with_few_samples_are_one_of_their_library() -> None:
    taken = [Sample("a", "x", False, "often")] * 1998 + [Sample("a", "x", False, f"once {n}") for n in range(2)]
    assert counted(taken) == [("a", "x", False, "often", 1998), ("a", "x", False, "", 2)]


def test_nothing_is_no_profile() -> None:
    with pytest.raises(SystemExit, match="No samples: give it the output of perf script"):
        counted([])


def test_the_page_has_shares_that_add_up_and_a_picture_of_them() -> None:
    taken = [("a", "x", True, "read", 600), ("a", "x", False, "walk", 396), ("b", "y", False, "", 4)]
    profile = {"of": "a run", "samples": taken}
    text = page._profile(profile, ".")
    assert text.splitlines()[-5:-1] == [
        "|---|---|---:|---:|",
        "| a | x | 39.6 | 60.0 |",
        "|  | the rest | 0.4 | 0.0 |",
        "|  | all | 40.0 | 60.0 |",
    ]
    drawn = ElementTree.fromstring(page.pictures({"runs": [], "profile": profile})["profile"])
    boxes = [each for each in drawn if each.tag.endswith("g")]
    assert [box[0].text for box in boxes] == [
        "a 99.6 %",
        "b 0.4 %",
        "x 99.6 %",
        "y 0.4 %",
        "walk 39.6 %",
        "read 60.0 %",
        " 0.4 %",
    ]
