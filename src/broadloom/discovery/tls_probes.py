"""Explanations of failed TLS connections, and whether a port speaks TLS at all."""

from __future__ import annotations

import asyncio
import ssl

from broadloom.deployment import FleetBroker
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.probe_client import close_connection

HANDSHAKE_SECONDS = 3.0
# Codes of OpenSSL's verification.
_NOT_YET, _EXPIRED, _OTHER_NAME, _OTHER_IP = 9, 10, 62, 64
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_CERTIFICATE_WANTED = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE", "UNKNOWN_CA")


def explain_tls_error(error: Exception, broker: FleetBroker) -> tuple[str, str]:
    """What is wrong with a TLS connection, and the setting to write."""
    ca = None if broker.tls is None else broker.tls.ca
    host = broker.host_and_port().hostname
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in _UNKNOWN_AUTHORITY:
            known = f"the authority in {ca}" if ca else "an authority that this system trusts"
            return (
                f"wrong CA: the certificate is not signed by {known}",
                'tls = { ca = "..." } in fleet.toml: the file of the authority that signed it',
            )
        if code == _EXPIRED:
            return "the certificate has expired", "a new certificate: certfile in mosquitto.conf"
        if code == _NOT_YET:
            return "the certificate is not valid yet", "the clocks, or a new certificate"
        if code in (_OTHER_NAME, _OTHER_IP):
            return (
                f"the certificate is not for {host}",
                'a name of the certificate as address = "..." in fleet.toml, or a certificate for this one',
            )
        return f"the certificate is not accepted: {error.verify_message}", "certfile in mosquitto.conf"
    reason = str(getattr(error, "reason", None) or error or type(error).__name__)
    if any(word in reason.upper().replace(" ", "_") for word in _CERTIFICATE_WANTED):
        found = "the broker wants a certificate of the client"
        if broker.tls is not None and broker.tls.certificate is not None:
            found = f"the broker does not accept the certificate in {broker.tls.certificate}"
        return found, 'tls = { ca = "...", certificate = "...", key = "..." } in fleet.toml'
    return f"TLS fails: {reason:.100}", "the port of a TLS listener in address, or tls in fleet.toml"


async def speaks_tls(address: Address) -> bool:
    """Whether a port answers a TLS handshake; nothing is verified, and nothing else is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            _, writer = await asyncio.open_connection(address.hostname, address.port, ssl=context)
    except ssl.SSLError as error:  # an alert of TLS is an answer too
        return "ALERT" in str(error.reason or "")
    except (OSError, TimeoutError):
        return False
    await close_connection(writer)
    return True
