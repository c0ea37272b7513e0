"""TiCDC's names of the kinds of changes (docs/event-filters.md)."""

from __future__ import annotations

ALL_DML, ALL_DDL, ALTER_TABLE = "all dml", "all ddl", "alter table"
ROW_CHANGES = ("insert", "update", "delete")
DDLS = (
    "create database",
    "drop database",
    "create schema",
    "drop schema",
    "modify schema charset and collate",
    "create table",
    "drop table",
    "truncate table",
    "rename table",
    "recover table",
    "modify table comment",
    "modify table charset and collate",
    "create view",
    "drop view",
    "add table partition",
    "drop table partition",
    "truncate table partition",
    "exchange table partition",
    "reorganize table partition",
    "alter table partitioning",
    "remove table partitioning",
    "add column",
    "drop column",
    "modify column",
    "set default value",
    "rebase auto id",
    "add primary key",
    "drop primary key",
    "create index",
    "drop index",
    "rename index",
    "alter index visibility",
    "add foreign key",
    "drop foreign key",
    "add fulltext index",
    "create hybrid index",
    "alter ttl info",
    "alter ttl remove",
    "multi schema change",
)
EVENT_TYPES = (ALL_DML, *ROW_CHANGES, ALL_DDL, ALTER_TABLE, *DDLS)
