"""NATS target: one file of leaf nodes per broker, to be included from its own configuration.

The leaf links of one account must form a tree, and NATS carries every subject of the account over it. So
trees share an account only if together they close no ring; otherwise there are several accounts, each with a
set of trees that closes no ring, and clients log in once per account.

Every broker with links listens for more: NATS 2.14 and later open and close links when they read their
configuration again, but a listener only when they start.

If the clients of a broker have an account of their own (`account` in the fleet file), links are in two other
accounts, the second of which is used only during a change. The clients' account imports the topics of both,
and hands what its clients publish to one of them: so two trees can exist at the same time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from broadloom.deployment.deployment_inputs import Settings, link_name, safe_name, variable_name
from broadloom.deployment.link_access import LinkAccess, link_access, uri_address
from broadloom.deployment.loop_checks import is_forest
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.topic_filters import groups

PORT = 7422
CERTIFICATES = "/etc/nats/certs"
PUBLIC = "broadloom"  # in place of a user and a password, where links have no login

FIRST, SECOND = "BROADLOOM_A", "BROADLOOM_B"  # accounts of links, next to an account of clients
IMPORTS = "BROADLOOM_IMPORTS"  # what the account of clients imports
# The names to which the configuration of a broker refers, for one without links.
NO_LINKS = f"{FIRST} {{}}\n{SECOND} {{}}\n{IMPORTS}: []\n"

_MARK = "  # "

Filters = tuple[str, ...]


class LeafTree(NamedTuple):
    """Links in one account.

    Attributes:
        wiring: the links.
        settings: addresses and logins.
    """

    wiring: Wiring
    settings: Settings


def files(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """The file of each broker, by name.

    Raises:
        InputError: trees close a ring and accounts are off, or a topic is not a valid subject.

    Examples:
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ("x",)),))
        >>> print(files(wiring, Settings(tls=False))["broker-a.conf"])
        # Links of broker 'a', written by broadloom; include it from nats-server.conf.
        leafnodes {
          no_advertise: true
          listen: "a:7422"
          remotes: [
            { url: "nats-leaf://b:7422" }  # broadloom-a:b
          ]
        }
        <BLANKLINE>
    """
    _check_subjects(wiring)
    accounts = accounts_of(wiring)
    if has_client_accounts(wiring.brokers, settings):
        _check_for_accounts(wiring, settings)
    if len(accounts) > 1 and not settings.accounts:
        raise InputError(
            f"the tree of {accounts[1][0]!r} closes a ring with those of other topics, and NATS accepts only "
            "one tree per account; link an overlay without rings, or export with --accounts. Then there are "
            f"{len(accounts)} accounts, clients log in to each that has a topic of theirs, and deploy apply "
            "cannot change the links"
        )
    return {
        f"broker-{safe_name(broker)}.conf": _broker_file(wiring, broker, accounts, settings)
        for broker in wiring.brokers
    }


def accounts_of(wiring: Wiring) -> list[list[str]]:
    """The topic filters of each account, by first fit, so that no account closes a ring.

    Examples:
        >>> ring = ("a", "b", "xy"), ("b", "c", "xz"), ("a", "c", "yz")
        >>> accounts_of(Wiring(("a", "b", "c"), {}, {}, tuple(WiredLink(u, v, x, x) for u, v, x in ring)))
        [['x'], ['y'], ['z']]
    """
    found = _first_fit(_links_by_group(wiring))
    return [[text for filters in account for text in filters] for account in found]


def _first_fit(links_of: Mapping[Filters, set[Hop]]) -> list[list[Filters]]:
    """The groups of each account: each joins the first account with which its links close no ring."""
    accounts: list[tuple[list[Filters], set[Hop]]] = []
    for filters, links in links_of.items():
        for members, together in accounts:
            if is_forest(together | links):
                members.append(filters)
                together |= links
                break
        else:
            accounts.append(([filters], set(links)))
    return [members for members, _ in accounts]


def joined(wiring: Wiring) -> Wiring:
    """The links that NATS needs if any broker can publish any topic; each carries all topics of its accounts.

    A leaf link carries an account as a whole, in both directions. So a broker publishes every topic of an
    account once it is linked with its trees, and one-way links that would close a ring are left out.

    Examples:
        >>> x, y = ("x",), ("y",)
        >>> links = WiredLink("a", "b", x, x), WiredLink("a", "c", y, x), WiredLink("b", "c", y, ())
        >>> wiring = Wiring(("a", "b", "c"), {"a": x, "b": x, "c": y}, {}, links, anywhere=True)
        >>> [link[:2] for link in joined(wiring).links]
        [('a', 'b'), ('a', 'c')]
    """
    if not wiring.anywhere:
        return wiring
    all_links = _links_by_group(wiring)
    trees = {filters: _two_way(wiring, filters) for filters in all_links}
    carried = defaultdict[Hop, set[str]](set)
    for account in _first_fit(trees):
        forest = set[Hop]().union(*(trees[filters] for filters in account))
        others = set[Hop]().union(*(all_links[filters] for filters in account)) - forest
        for edge in sorted(others):
            if is_forest(forest | {edge}):
                forest.add(edge)
        for edge in forest:
            carried[edge].update(text for filters in account for text in filters)
    links = []
    for owner, peer in sorted(carried):
        both = tuple(sorted(carried[owner, peer]))
        links.append(WiredLink(owner, peer, both, both))
    return replace(wiring, links=tuple(links))


def _two_way(wiring: Wiring, filters: Filters) -> set[Hop]:
    """The ends of the links that carry a group in both directions: its tree."""
    known = set(filters)
    return {
        (link.owner, link.peer)
        for link in wiring.links
        if not known.isdisjoint(link.out) and not known.isdisjoint(link.into)
    }


def account_of(wiring: Wiring) -> dict[str, str]:
    """The account of each topic filter that links carry; if one is enough, it is the global account."""
    accounts = accounts_of(wiring)
    named = (f"BROADLOOM_{i}" if len(accounts) > 1 else "$G" for i in range(1, len(accounts) + 1))
    return {text: name for name, filters in zip(named, accounts, strict=True) for text in filters}


def moved_topics(old: Wiring, new: Wiring) -> dict[str, tuple[str, str]]:
    """The topic filters of both wirings that change accounts, with the old and the new account.

    Examples:
        >>> one = Wiring(tuple("abc"), {}, {}, (WiredLink("a", "b", ("x",), ("x",)),))
        >>> ends = ("a", "b", "x"), ("b", "c", "xz"), ("a", "c", "z")
        >>> two = Wiring(tuple("abc"), {}, {}, tuple(WiredLink(u, v, tuple(x), tuple(x)) for u, v, x in ends))
        >>> moved_topics(one, two)
        {'x': ('$G', 'BROADLOOM_1')}
    """
    before = account_of(old)
    after = account_of(new)
    return {
        text: (before[text], after[text])
        for text in sorted(before)
        if text in after and before[text] != after[text]
    }


def _links_by_group(wiring: Wiring) -> dict[Filters, set[Hop]]:
    """The ends of the links of each group of topic filters that can match the same topic."""
    texts = sorted({text for link in wiring.links for text in link.out + link.into})
    members = defaultdict[str, list[str]](list)
    for text, name in groups(texts).items():
        members[name].append(text)
    links_of = defaultdict[str, set[Hop]](set)
    for link in wiring.links:
        for text in link.out + link.into:
            links_of[text].add(link[:2])
    return {tuple(group): set().union(*(links_of[text] for text in group)) for group in members.values()}


def _broker_file(
    wiring: Wiring,
    broker: str,
    accounts: list[list[str]],
    settings: Settings,
    listens: bool = False,
    only: Collection[Hop] | None = None,
) -> str:
    if has_client_accounts((broker,), settings):
        return account_file(broker, settings, {FIRST: LeafTree(wiring, settings)}, FIRST)
    lines = [f"# Links of broker {broker!a}, written by broadloom; include it from nats-server.conf."]
    several = len(accounts) > 1
    own = [link for link in wiring.links if link.owner == broker and (only is None or link[:2] in only)]
    lines += _accounts(accounts) if several else []
    if listens or any(broker in link[:2] for link in wiring.links):
        lines += ["leafnodes {", "  no_advertise: true", *_listener(broker, settings, not several)]
        lines += ["  remotes: ["]
        trees = [_tree(wiring, filters) for filters in accounts] if several else [_tree(wiring)]
        hubs = [hub_links(tree) for tree in trees]
        for link in own:
            lines += _remotes(link, accounts if several else [], settings, hubs)
        lines += ["  ]", "}"]
    return "\n".join(lines) + "\n"


def _tree(wiring: Wiring, filters: Iterable[str] | None = None) -> set[Hop]:
    """The ends of the links that carry some topic filters, or any."""
    known = None if filters is None else set(filters)
    return {link[:2] for link in wiring.links if known is None or not known.isdisjoint(link.filters())}


def hub_links(links: Collection[Hop]) -> set[Hop]:
    """Of the links of a tree, by owner and peer, those whose owner is the hub.

    A server does not tell its hubs of each other's subscriptions. So each broker has one hub at most: its
    neighbour towards the root, which is the broker whose id sorts last.

    Examples:
        >>> sorted(hub_links([("a", "b"), ("a", "c"), ("c", "d")]))
        [('a', 'b')]
    """
    neighbours = defaultdict[str, set[str]](set)
    for owner, peer in links:
        neighbours[owner].add(peer)
        neighbours[peer].add(owner)
    seen: set[str] = set()
    found = set()
    for root in sorted(neighbours, reverse=True):
        queue = [] if root in seen else [root]
        seen.add(root)
        for hub in queue:
            others = sorted(neighbours[hub] - seen)
            found |= {(hub, other) for other in others}
            seen.update(others)
            queue += others
    return found.intersection(links)


def listening_file(
    wiring: Wiring, broker: str, settings: Settings, only: Collection[Hop] | None = None
) -> str:
    """The file of a broker that listens for links, even if it has none; all topics are in one account.

    Args:
        wiring: the links of all brokers.
        broker: the broker.
        settings: addresses and logins.
        only: of its links, by owner and peer, those in the file; None: all.
    """
    return _broker_file(wiring, broker, [], settings, listens=True, only=only)


def has_client_accounts(brokers: Iterable[str], settings: Settings) -> bool:
    """Whether the clients of brokers have an account of their own.

    Raises:
        InputError: those of some have, and those of others do not.
    """
    known = {name: settings.brokers[name].account is not None for name in brokers if name in settings.brokers}
    if len(set(known.values())) > 1:
        without = next(name for name, has in known.items() if not has)
        raise InputError(
            f"broker {without!r} has no account in the fleet file, but another broker has one; give all "
            "brokers one, or none"
        )
    return any(known.values())


_HEAD = """\
# Links of broker {broker}, written by broadloom; include it at the start of nats-server.conf, which also has:
#   accounts {{
#     {account} {{ imports: ${imports} }}  # and its users
#     {first}: ${first}
#     {second}: ${second}
#   }}"""


class AccountFault(NamedTuple):
    """What nats-server.conf lacks for links in accounts of their own.

    Attributes:
        found: what it lacks.
        lines: what to add to its block `accounts`.
    """

    found: str
    lines: str


def missing_accounts(account: str, defined: Collection[str]) -> AccountFault | None:
    """What nats-server.conf lacks, if it defines some accounts; None: nothing.

    Args:
        account: the account of clients.
        defined: the accounts that the server has.

    Examples:
        >>> missing_accounts("APP", ["$G", "APP", "BROADLOOM_A"]).lines
        'BROADLOOM_B: $BROADLOOM_B'
    """
    missing = [name for name in (account, FIRST, SECOND) if name not in defined]
    lines = [
        f"{name} {{ users: [...], imports: ${IMPORTS} }}" if name == account else f"{name}: ${name}"
        for name in missing
    ]
    found = f"nats-server.conf does not define the account{'s' * (len(missing) > 1)} {', '.join(missing)}"
    return AccountFault(found, "; ".join(lines)) if missing else None


def missing_imports(account: str, imports: Iterable[Any]) -> AccountFault | None:
    """What nats-server.conf lacks, if the account of clients has some imports; None: nothing.

    Args:
        account: the account of clients of a broker with links.
        imports: its imports, as the monitoring port lists them.

    Examples:
        >>> missing_imports("APP", [{"account": "$SYS"}]).lines
        'imports: $BROADLOOM_IMPORTS in APP'
    """
    if any(isinstance(one, Mapping) and one.get("account") in (FIRST, SECOND) for one in imports):
        return None
    return AccountFault(
        f"account {account} imports nothing from links, so nothing crosses them",
        f"imports: ${IMPORTS} in {account}",
    )


def _check_for_accounts(wiring: Wiring, settings: Settings) -> None:
    """Check what links in accounts of their own cannot have."""
    if settings.accounts:
        raise InputError(
            "--accounts does not apply to brokers with an account in the fleet file; leave it out"
        )
    for text in sorted({text for link in wiring.links for text in link.filters()}):
        if text.startswith(("$", "#", "+")):
            raise InputError(
                f"topic filter {text!r} matches subjects of NATS itself, such as replies, which accounts "
                "cannot hand to each other; give filters that begin with a name, or leave out account"
            )


def account_file(broker: str, settings: Settings, trees: Mapping[str, LeafTree], active: str) -> str:
    """The file of a broker whose clients have an account of their own; it always listens for links.

    Args:
        broker: the broker.
        settings: its own settings.
        trees: the links in each of the two accounts.
        active: the account that takes what clients publish.
    """
    account = settings.brokers[broker].account
    names = {"imports": IMPORTS, "first": FIRST, "second": SECOND}
    lines = _HEAD.format(broker=ascii(broker), account=account, **names).splitlines()
    filters = {text for tree in trees.values() for link in tree.wiring.links for text in link.filters()}
    subjects = [_quoted(text) for text in disjoint_subjects(filters)]
    exports = ", ".join(f"{{ {kind}: {text} }}" for text in subjects for kind in ("stream", "service"))
    lines += [f"{name} {{ exports: [ {exports} ] }}" for name in (FIRST, SECOND)]
    lines += [f"{IMPORTS}: ["]
    for kind, name in (("stream", FIRST), ("stream", SECOND), ("service", active)):
        lines += [f"  {{ {kind}: {{ account: {name}, subject: {text} }} }}" for text in subjects]
    lines += ["]", "leafnodes {", "  no_advertise: true", *_listener(broker, settings, with_login=False)]
    users = ", ".join(_user_of(name, broker, settings) for name in (FIRST, SECOND))
    lines += [f"  authorization {{ users: [ {users} ] }}", "  remotes: ["]
    for name, tree in trees.items():
        hubs = hub_links(_tree(tree.wiring))
        for link in tree.wiring.links:
            if link.owner == broker:
                lines += _remotes(link, [], tree.settings, [hubs], name)
    return "\n".join([*lines, "  ]", "}"]) + "\n"


def _user_of(account: str, broker: str, settings: Settings) -> str:
    """The user of the links to a broker in one of the two accounts of links."""
    access = link_access(settings, broker, CERTIFICATES)
    user = _link_user(access, account)
    if access.user is None:
        return f"{{ user: {_quoted(user)}, password: {_quoted(PUBLIC)}, account: {account} }}"
    own = _user(access._replace(user=user), broker, settings)
    return own.removesuffix(" }") + f", account: {account} }}"


def _link_user(access: LinkAccess, account: str) -> str:
    """The user in one of the accounts of links; it tells the accounts apart."""
    base = PUBLIC if access.user is None else access.user
    return base if account == FIRST else f"{base}-b"


def disjoint_subjects(filters: Iterable[str]) -> list[str]:
    """The NATS subjects of topic filters; those that overlap are joined, so that no message matches two.

    Examples:
        >>> disjoint_subjects(["x/#", "x/y", "y/+/a", "y/b/+", "z"])
        ['x', 'x.>', 'y.*.*', 'z']
    """
    found: list[list[str]] = []
    wanted = {text.replace("/", ".").replace("+", "*").replace("#", ">") for text in filters}
    wanted |= {text.removesuffix(".>") for text in wanted}  # in MQTT, x/# matches x too
    for text in sorted(wanted):
        levels = text.split(".")
        while other := next((one for one in found if _can_meet(one, levels)), None):
            found.remove(other)
            levels = _joined_levels(other, levels)
        found.append(levels)
    return sorted(".".join(levels) for levels in found)


def _can_meet(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a message can match two subjects."""
    for here, there in zip(one, other, strict=False):
        if ">" in (here, there):
            return True
        if here != there and "*" not in (here, there):
            return False
    return len(one) == len(other)


def _joined_levels(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The narrowest subject that matches what two subjects match that can meet."""
    joined: list[str] = []
    for here, there in zip(one, other, strict=False):
        if ">" in (here, there):
            return [*joined, ">"]
        joined.append(here if here == there else "*")
    return joined


def listen_address(broker: str, settings: Settings) -> Address:
    """Where a broker listens for leaf nodes: `leaf_listen` of the fleet file, or the host of its address.

    Examples:
        >>> str(listen_address("b", Settings("{broker}.example.org")))
        'b.example.org:7422'
    """
    own = settings.brokers.get(broker)
    if own is not None and own.leaf_listen is not None:
        return Address.parse(own.leaf_listen, PORT, f"leaf_listen of broker {broker!r}")
    return settings.host_and_port(broker, PORT)


def open_listener_notes(wiring: Wiring, settings: Settings) -> list[str]:
    """A line about the brokers to which anyone can link, if there are some.

    Examples:
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ("x",)),))
        >>> open_listener_notes(wiring, Settings(tls=False))
        ["anyone who can reach a:7422 can link to broker 'a' (and 1 more); give it a login in fleet.toml"]
    """
    if settings.accounts and len(accounts_of(wiring)) > 1:
        return []  # their links always log in
    linked = {end for link in wiring.links for end in link[:2]}
    found = []
    for name in (one for one in wiring.brokers if one in linked):
        access = link_access(settings, name, CERTIFICATES)
        if access.user is None and access.certificate is None:
            found.append(name)
    if not found:
        return []
    more = f" (and {len(found) - 1:,} more)" if found[1:] else ""
    return [
        f"anyone who can reach {listen_address(found[0], settings)} can link to broker {found[0]!r}{more}; "
        "give it a login in fleet.toml"
    ]


def _listener(broker: str, settings: Settings, with_login: bool) -> list[str]:
    """The lines of a broker to which others link."""
    access = link_access(settings, broker, CERTIFICATES)
    lines = [f"  listen: {_quoted(uri_address(listen_address(broker, settings)))}"]
    if access.tls:
        folder = settings.certificates or CERTIFICATES
        files = {"cert_file": "broker.crt", "key_file": "broker.key"}
        files |= {} if access.certificate is None else {"ca_file": "ca.crt"}
        options = [f"{name}: {_quoted(f'{folder}/{file}')}" for name, file in files.items()]
        options += [] if access.certificate is None else ["verify: true"]
        lines.append(f"  tls {{ {', '.join(options)} }}")
    if with_login and access.user is not None:
        lines.append(f"  authorization {_user(access, broker, settings)}")
    return lines


def _user(access: LinkAccess, broker: str, settings: Settings) -> str:
    """A user with a password from the environment, or with the password itself."""
    if broker not in settings.brokers:
        return _login("BROADLOOM")
    password = f"$BROADLOOM_PASSWORD_{variable_name(broker)}"
    if access.has_secret:
        if (access.password or "").startswith("$2"):
            raise InputError(
                f"the password of broker {broker!r} begins with $2, as a hash does for NATS; choose another"
            )
        password = _quoted(access.password or "")
    return f"{{ user: {_quoted(access.user or '')}, password: {password} }}"


def _quoted(text: str) -> str:
    r"""A string of NATS's configuration; in it, a variable has no meaning.

    Examples:
        >>> print(_quoted('a"b$HOME'))
        "a\"b$HOME"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _accounts(accounts: list[list[str]]) -> list[str]:
    lines = ["accounts {"]
    for i, filters in enumerate(accounts, 1):
        few = ", ".join(filters[:5]) + (", ..." if len(filters) > 5 else "")
        lines.append(f"  BROADLOOM_{i} {{ users: [ {_login(f'BROADLOOM_{i}')} ] }}{_MARK}{few}")
    return [*lines, "}"]


def _login(name: str) -> str:
    """A user with a password from the environment."""
    return f"{{ user: {name}, password: ${name}_PASSWORD }}"


def _remotes(
    link: WiredLink,
    accounts: list[list[str]],
    settings: Settings,
    hubs: Sequence[set[Hop]],
    account: str | None = None,
) -> list[str]:
    """One remote per account with a topic on the link.

    Args:
        link: the link.
        accounts: the topic filters of each account; empty: there is one account.
        settings: addresses and logins.
        hubs: per account, the links whose owner is the hub.
        account: the account, if clients have another.
    """
    as_hub = [", hub: true" if link[:2] in one else "" for one in hubs]
    access = link_access(settings, link.peer, CERTIFICATES)
    address = uri_address(settings.host_and_port(link.peer, PORT))
    scheme = "tls" if access.tls else "nats-leaf"
    name = link_name(link.owner, link.peer)
    tls = _remote_tls(access)
    if not accounts:
        user, password = access.user, access.password
        where = ""
        if account is not None:
            user = _link_user(access, account)
            password = PUBLIC if access.user is None else password
            where = f", account: {account}"
        url = _quoted(f"{scheme}://{address}")
        if access.has_secret or (access.user is None and user is not None):
            login = ":".join(quote(text or "", safe="") for text in (user, password))
            url = _quoted(f"{scheme}://{login}@{address}")
        elif access.user is not None:
            url = f"$BROADLOOM_URL_{variable_name(link.peer)}"
        return [f"    {{ url: {url}{where}{as_hub[0]}{tls} }}{_MARK}{name}"]
    carried = {*link.out, *link.into}
    return [
        f"    {{ url: $BROADLOOM_{i}_URL_{variable_name(link.peer)}, account: BROADLOOM_{i}"
        f"{as_hub[i - 1]}{tls} }}"
        f"{_MARK}{name} at {scheme}://{address}"
        for i, filters in enumerate(accounts, 1)
        if carried.intersection(filters)
    ]


def _remote_tls(access: LinkAccess) -> str:
    """The certificates of a remote; none are needed if the system's are trusted."""
    files = (("cert_file", access.certificate), ("key_file", access.key), ("ca_file", access.ca))
    options = [f"{name}: {_quoted(file)}" for name, file in files if file is not None]
    return f", tls: {{ {', '.join(options)} }}" if options else ""


def _check_subjects(wiring: Wiring) -> None:
    for text in sorted({text for link in wiring.links for text in link.out + link.into}):
        if re.search(r"[.*>\s]", text) or "" in text.split("/"):
            raise InputError(
                f"topic {text!r} has an empty level, a space, or one of . * >, and is not a valid NATS "
                "subject; rename it"
            )


def read_links(files: Mapping[str, str], wiring: Wiring) -> list[WiredLink]:
    """The links in exported files; their topic filters are those of the wiring: the files name no topics."""
    carried = {link_name(link.owner, link.peer): link for link in wiring.links}
    broker_of = {safe_name(broker): broker for broker in wiring.brokers}
    links = []
    for name, text in files.items():
        owner = broker_of[name.removeprefix("broker-").removesuffix(".conf")]
        titles = re.findall(r"\{ url: .*# (broadloom-\S+)", text)
        links += [carried[title]._replace(owner=owner) for title in dict.fromkeys(titles)]
    return links
