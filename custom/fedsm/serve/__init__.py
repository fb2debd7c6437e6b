"""The super model on a web page and as a REST service; see docs/how-to/serve.md."""
