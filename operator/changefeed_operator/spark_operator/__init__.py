"""The Spark operators that can run a changefeed's driver: what each of them wants and says."""
