"""The one exception that a person is meant to read."""


class UserError(Exception):
    """Bad input: one line that names the site, the file and the remedy.

    Args:
        message: the whole line, for the person who owns the input.
        public: the same without file names or paths, safe to leave a site. Default: a generic hint.
    """

    def __init__(self, message: str, public: str = "bad input at the site: see the site's own log"):
        super().__init__(message)
        self.public = public
