"""Views of a result: a page for people, Markdown for a pull request. They read nothing but the result."""
