"""What is done for a changefeed without a driver: closing it, and finding what closed ones left behind."""
