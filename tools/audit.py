"""Check the packages of this environment for known vulnerabilities with pip-audit (`make audit`).

The check fails if a package has a known vulnerability or could not be looked up. Arguments are passed to pip-audit:
`make audit ARGS="-s osv --osv-url URL"` uses a mirror.
"""

import json
import subprocess
import sys

#: Packages that are not on a package index.
SKIPPED_PACKAGES = {"headwise"}


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json", "--progress-spinner", "off"]
    command += sys.argv[1:]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(process.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (process.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        print(f"audit: no package could be looked up; a network is required ({reason})", file=sys.stderr)
        return 1
    packages = [package for package in packages if package["name"] not in SKIPPED_PACKAGES]
    for package in packages:
        for vulnerability in package.get("vulns", []):
            fix_versions = ", ".join(vulnerability["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fix_versions}")
    unchecked = [package["name"] for package in packages if "skip_reason" in package]
    if unchecked:
        names = ", ".join(unchecked[:5])
        print(
            f"audit: {len(unchecked)} of {len(packages)} packages could not be looked up ({names}, …); "
            "a network is required",
            file=sys.stderr,
        )
    num_vulnerable = sum(bool(package.get("vulns")) for package in packages)
    print(f"audit: {len(packages) - len(unchecked)} packages looked up, {num_vulnerable} with known vulnerabilities")
    return 1 if num_vulnerable or unchecked else 0


if __name__ == "__main__":
    sys.exit(main())
