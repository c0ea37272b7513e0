"""Moves a TiCDC changefeed here: its configuration becomes a Changefeed, which goes on in the folder that it wrote.

`config` and `keys` are behind `changefeed import`; `adoption` and `folder` behind `changefeed adopt --ticdc`.
"""
