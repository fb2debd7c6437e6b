"""Secure sum: the server learns the sum of the sites' updates and no single one of them.

This package is the part that sites and server share: numbers (`fixed_point`), masks and keys (`masks`), shares of
secrets (`shamir`), and who sums with whom (`group`). The site's part is `client/secure_sum.py`, the server's
`server/secure_sum.py`, and what is sent when `flare/secure_sum.py`. The protocol and its trust model are on the page
`docs/explanation/secure-sum.md`.
"""
