"""Every request to PD, to TiKV's key-value service and to its change feed is built here, and checked before it is sent.

A server takes a request at its word: one whose arguments are not as the protocol means them is answered with silence,
with other rows, or worse. So a builder refuses it with InvalidRequest, which names the argument and its value.
Nothing else in the product builds requests.
"""
