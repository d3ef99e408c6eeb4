"""Render a folder's untrusted Markdown as HTML: embedded HTML is shown as text, and links to files are removed."""

from collections.abc import Mapping
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

_MOST = 2**18  # maximum number of characters shown


def to_html(text: str, picture_urls: Mapping[str, str]) -> Markup:
    """Render Markdown; ``picture_urls`` maps the names of the folder's pictures to their URLs.

    Other pictures are replaced by their alt text, and links to anything but web pages by their link text.
    """
    markdown = MarkdownIt("js-default")  # with tables, without HTML
    tokens = markdown.parse(text[:_MOST])
    for token in tokens:
        if token.type in ("table_open", "table_close"):
            token.type, token.content = "html_block", _TABLE[token.type]  # wide tables scroll in their own box
        token.children = _safe(token.children or [], picture_urls) if token.type == "inline" else token.children
    # Every other token escapes its content, even where the options would allow HTML.
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


_TABLE = {"table_open": '<div class="scroll"><table>\n', "table_close": "</table></div>\n"}


def _safe(tokens: list[Token], picture_urls: Mapping[str, str]) -> list[Token]:
    """Replace links and pictures that would point outside the folder."""
    is_web = False  # links do not nest
    for token in tokens:
        if token.type == "image":
            url = picture_urls.get(unquote(str(token.attrs["src"])))
            token.attrs["src"] = url or ""
            if url is None:
                token.type = "text"  # its content is the alt text
        elif token.type == "link_open":
            href = str(token.attrs["href"])
            is_web = href.startswith(("https://", "http://"))
            token.attrs = {"href": href, "rel": "noreferrer"} if is_web else {"title": unquote(href)}
        if token.type in ("link_open", "link_close") and not is_web:
            token.tag = "span"
    return tokens
