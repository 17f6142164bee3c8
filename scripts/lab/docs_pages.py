"""The pages of the documentation's site, for mkdocs: files of the repository, in the folders in which they are."""
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[2]
#: Pages and the pictures that they show.
PATTERNS = ('README.md', 'CONTRIBUTING.md', 'tests/README.md', 'docs/*.md', 'docs/*.svg')


def on_files(files, config):
    """Replace the files of `docs_dir` by those of the repository; called by mkdocs."""
    paths = [path.relative_to(REPOSITORY).as_posix() for pattern in PATTERNS for path in REPOSITORY.glob(pattern)]
    pages = [File(path, str(REPOSITORY), config.site_dir, config.use_directory_urls) for path in sorted(paths)]
    return Files([file for file in files if file.src_dir != config.docs_dir] + pages)


def on_page_content(html, **_):
    """Drop the roles of docstrings, ``:func:`name```, and the ~ in names; called by mkdocs."""
    return re.sub(r':(?:attr|class|data|func|meth|mod):(<code>)~?', r'\1', html)
