from __future__ import annotations

import pytest
from changefeed.spec.field.location import BucketLocation, parse_bucket


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("s3://lake", BucketLocation("s3", "lake", "")),
        ("s3://lake/", BucketLocation("s3", "lake", "")),
        ("s3://lake//a/b%20c/", BucketLocation("s3", "lake", "a/b c")),
        (
            "s3://lake/a?endpoint=http://127.0.0.1:17070/&region=eu-west-1",
            BucketLocation("s3", "lake", "a", "http://127.0.0.1:17070", "eu-west-1"),
        ),
        (
            "s3://lake/a?force-path-style=false&endpoint=https%3A%2F%2Fs3.example.org",
            BucketLocation("s3", "lake", "a", "https://s3.example.org", path_style=False),
        ),
        (
            "s3://lake/a?sse=aws:kms&sse-kms-id=arn:aws:kms:us-east-1:1:key/a-b&storage-class=STANDARD_IA",
            BucketLocation(
                *("s3", "lake", "a"),
                storage_class="STANDARD_IA",
                sse="aws:kms",
                sse_kms_id="arn:aws:kms:us-east-1:1:key/a-b",
            ),
        ),
        (
            "az://lake/a?account-name=shop&endpoint=http://h:1",
            BucketLocation("az", "lake", "a", "http://h:1", account="shop"),
        ),
        (
            "s3://lake/a?header-x-tenant=shop%3B+a&header-cost=7",
            BucketLocation("s3", "lake", "a", headers=(("cost", "7"), ("x-tenant", "shop; a"))),
        ),
        (
            "gs://lake/a?header-x-goog-user-project=billed",
            BucketLocation("gs", "lake", "a", headers=(("x-goog-user-project", "billed"),)),
        ),
        ("gs://lake/a?storage-class=NEARLINE", BucketLocation("gs", "lake", "a", storage_class="NEARLINE")),
    ],
)
def test_a_uri_and_its_one_spelling(uri: str, location: BucketLocation) -> None:
    assert parse_bucket(uri) == location
    assert parse_bucket(location.uri) == location
    assert parse_bucket(location.uri).uri == location.uri


def test_a_folder_below_keeps_the_parameters() -> None:
    location = parse_bucket("s3://lake/state?endpoint=http://h:1")
    assert location.below("shop", "ordérs", "local").uri == "s3://lake/state/shop/ord%C3%A9rs/local?endpoint=http://h:1"
    assert BucketLocation("s3", "lake", "").below("x").uri == "s3://lake/x"


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
        "s3://lake/a?account-name=hunter2",
        "s3://lake/a?sse=hunter2",
        "s3://lake/a?sse=AES256&sse-kms-id=hunter2",
        "s3://lake/a?storage-class=GLACIER",
        "s3://lake/a?header-=hunter2",
        "s3://lake/a?header-x-a=",
        "s3://lake/a?header-X-A=hunter2",
        "s3://lake/a?header-x-a=hunter2%0d%0ahost:b",
        "s3://lake/a?header-x-a=+hunter2",
        "s3://lake/a?header-x-a=1&header-x-a=hunter2",
        "s3://lake/a?header-x-amz-content-sha256=hunter2",
        "s3://lake/a?header-x-amz-request-payer=hunter2",
        "s3://lake/a?header-authorization=hunter2",
        "s3://lake/a?header-host=hunter2",
        "s3://lake/a?header-if-match=hunter2",
        "s3://lake/a?header-content-length=8",
        "s3://lake/a?" + "&".join(f"header-x-{number}=hunter2" for number in range(9)),
        "gs://lake/a?header-x-goog-if-generation-match=8",
        "az://lake/a?account-name=shop&header-x-ms-lease-id=hunter2",
        "az://lake/hunter2",
        "az://lake/hunter2?account-name=",
        "az://lake/hunter2./a?account-name=shop",
        "az://lake/a?account-name=Hunter2!",
        "az://lake/a?account-name=shop&storage-class=archive",
        "gs://lake/a?region=hunter2",
        "azure://lake/hunter2",
        "file:///hunter2",
    ],
)
def test_what_is_wrong_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(
        ValueError, match=r"://|endpoint|region|force-path-style|account-name|storage-class|sse|header-"
    ) as caught:
        parse_bucket(uri)
    assert "unter2" not in str(caught.value)
