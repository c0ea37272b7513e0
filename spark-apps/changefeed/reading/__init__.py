"""Reads a storage sink back, as a consumer of TiCDC's files does: verify, restore and tail stand on it.

It has its own code for names and formats: it shares nothing with the encoders, whose bugs verify is there to find.
"""
