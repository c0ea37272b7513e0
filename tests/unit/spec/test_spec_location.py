from __future__ import annotations

import pytest
from changefeed.spec.field.location import S3Location, parse_s3


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3://lake", S3Location("lake", "")),
        ("s3://lake/", S3Location("lake", "")),
        ("s3://lake//a/b%20c/", S3Location("lake", "a/b c")),
        (
            "s3://lake/a?endpoint=http://127.0.0.1:17070/&region=eu-west-1",
            S3Location("lake", "a", "http://127.0.0.1:17070", "eu-west-1"),
        ),
        (
            "s3://lake/a?force-path-style=false&endpoint=https%3A%2F%2Fs3.example.org",
            S3Location("lake", "a", "https://s3.example.org", path_style=False),
        ),
    ],
)
def test_a_uri_and_its_one_spelling(uri: str, place: S3Location) -> None:
    assert parse_s3(uri) == place
    assert parse_s3(place.uri) == place
    assert parse_s3(place.uri).uri == place.uri


def test_a_folder_below_keeps_the_parameters() -> None:
    place = parse_s3("s3://lake/state?endpoint=http://h:1")
    assert place.below("shop", "ordérs", "local").uri == "s3://lake/state/shop/ord%C3%A9rs/local?endpoint=http://h:1"
    assert S3Location("lake", "").below("x").uri == "s3://lake/x"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://",
        "s3:///hunter2",
        "s3://hunter2@lake/a",
        "s3://lake/../hunter2",
        "s3://lake/hunter2%0a",
        "s3://lake/a#hunter2",
        "s3://lake/a?hunter2",
        "s3://lake/a?hunter2=1",
        "s3://lake/a?region=us&region=hunter2",
        "s3://lake/a?region=Hunter2!",
        "s3://lake/a?endpoint=hunter2",
        "s3://lake/a?endpoint=http://u:hunter2@h:1",
        "s3://lake/a?endpoint=http://h:1/hunter2",
        "s3://lake/a?endpoint=http://h:hunter2",
        "s3://lake/a?force-path-style=hunter2",
        "file:///hunter2",
    ],
)
def test_what_is_wrong_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ValueError, match=r"s3://|endpoint|region|force-path-style") as caught:
        parse_s3(uri)
    assert "unter2" not in str(caught.value)
