"""`make audit`: no package of this environment may have a known vulnerability, and all must have been looked up.

What is said besides goes to pip-audit: `make audit ARGS="-s osv --osv-url URL"` asks a mirror.
"""

import json
import subprocess
import sys

OURS = {"headwise"}


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json", "--progress-spinner", "off"]
    command += sys.argv[1:]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        print(f"audit: nothing was looked up; it needs a network ({last})", file=sys.stderr)
        return 1
    known = [package for package in packages if package["name"] not in OURS]
    unknown = [package["name"] for package in known if "skip_reason" in package]
    for package in known:
        for found in package.get("vulns", []):
            fixed = ", ".join(found["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {found['id']}, fixed in {fixed}")
    if unknown:
        few = ", ".join(unknown[:5])
        print(
            f"audit: {len(unknown)} of {len(known)} packages could not be looked up ({few}, …); it needs a network",
            file=sys.stderr,
        )
    vulnerable = sum(bool(package.get("vulns")) for package in known)
    print(f"audit: {len(known) - len(unknown)} packages looked up, {vulnerable} with known vulnerabilities")
    return 1 if vulnerable or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
