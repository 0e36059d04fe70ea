"""What a model card says of licences: its front matter and its section."""

from __future__ import annotations

import re

from ram_studio.checkpoints.record.card_markup import escaped, linked
from ram_studio.checkpoints.record.passport import LicenceRecord, Passport

_PLAIN_LINK = re.compile(r"https://[A-Za-z0-9./_%~?=&+-]{1,280}")


def licence_fields(record: LicenceRecord) -> dict[str, str]:
    """Return the licence as the Hub wants it; what is not spelt as it may be is left out."""
    if record.id is None or not re.fullmatch(r"[a-z0-9][a-z0-9.+-]{0,60}", record.id):
        return {"license": "unknown"}
    fields = {"license": record.id}
    if record.id == "other" and re.fullmatch(
        r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,95}", record.name or ""
    ):
        fields["license_name"] = record.name or ""
    if record.id == "other" and _PLAIN_LINK.fullmatch(record.link or ""):
        fields["license_link"] = record.link or ""
    return fields


def licence_section(passport: Passport) -> str:
    """Return a table of every source's licence, and which of them asks most."""
    rows = [
        (escaped(name), linked(record), _licence_link(record.license), record.license.licence.asks)
        for name, record in passport.sources.items()
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    licence = passport.license.licence
    if licence.rank == "unknown":
        meaning = (
            "Not every source states a licence, and what is not stated is not allowed: ask its "
            "authors before you share this model."
        )
    else:
        meaning = (
            f"The most restrictive is {_licence_link(passport.license)} ({licence.asks}); a merge "
            "is a derivative of every source and must respect the terms of all of them."
        )
    return (
        "| source | from | licence stated | asks |\n| --- | --- | --- | --- |\n"
        f"{table}\n\n{meaning} "
        "Read from the sources' model cards; no legal advice."
    )


def _licence_link(record: LicenceRecord) -> str:
    shown = escaped(record.licence.shown)
    if record.id != "other" or not _PLAIN_LINK.fullmatch(record.link or ""):
        return shown
    return f"[{shown}]({record.link})"
