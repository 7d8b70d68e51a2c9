"""A private certificate authority per test, and the certificates of brokers."""

import subprocess

from broadloom.deployment.rehearsal.mosquitto_lab import HOST


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority(folder):
    """A folder of certificates as brokers have it: ca.crt, and broker.crt with its key, signed by it."""
    folder.mkdir()
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca, broker = folder / "ca", folder / "broker"
    openssl(
        "req",
        "-x509",
        *curve,
        "-days",
        1,
        "-subj",
        "/CN=authority",
        "-keyout",
        f"{ca}.key",
        "-out",
        f"{ca}.crt",
    )
    openssl("req", *curve, "-subj", "/CN=broker", "-keyout", f"{broker}.key", "-out", f"{broker}.csr")
    (folder / "names").write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n")
    openssl(
        *(
            "x509",
            "-req",
            "-in",
            f"{broker}.csr",
            "-CA",
            f"{ca}.crt",
            "-CAkey",
            f"{ca}.key",
            "-CAcreateserial",
        ),
        *("-days", 1, "-extfile", folder / "names", "-out", f"{broker}.crt"),
    )
    return folder
