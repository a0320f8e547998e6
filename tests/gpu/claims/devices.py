"""GPUs that rlaunch shows, beside nvidia-smi and sysfs."""

import json
import os
import re
import sys
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from harness import RowFailed, check, found

# Columns of `nvidia-smi --query-gpu`, and by how much a value may leave the range of two readings around it: power and use
# are means over moving windows.
COLUMNS = {
    "utilization.gpu": 15.0,
    "memory.used": 0.0,
    "memory.total": 0.0,
    "power.draw": 25.0,
    "temperature.gpu": 3.0,
}
# Speed of a lane in GT/s by generation of PCIe.
SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
MIB = 1 << 20


def listed(run):
    """Two ranks see the GPUs that nvidia-smi -L lists here."""
    expected = [line.strip() for line in run.smi("witness", "-L").splitlines() if line.startswith("GPU ")]
    ran = run.once(lambda: run.rlaunch("job", "-np", "2", "nvidia-smi", "-L")).passed("rlaunch -np 2 nvidia-smi -L")
    lines = [line.strip() for line in ran.out.splitlines() if line.startswith("GPU ")]
    check(expected and sorted(lines) == sorted(2 * expected), f"ranks: {lines}; here: {expected}")
    return f"twice {expected[0]}" + (f" and {len(expected) - 1} more" if expected[1:] else "")


def _address(text):
    """PCI address as the kernel writes it; nvidia-smi has eight digits of domain, in capitals."""
    domain, rest = text.strip().lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _smi_cards(run):
    """GPUs by address as `nvidia-smi -q -x` has them."""
    log = ElementTree.fromstring(run.smi("witness", "-q", "-x"))
    cards = {}
    for gpu in log.iter("gpu"):
        link = gpu.find("pci/pci_gpu_link_info")
        cards[_address(gpu.findtext("pci/pci_bus_id"))] = {
            "model": gpu.findtext("product_name").strip(),
            "driver": log.findtext("driver_version").strip(),
            "generation": link.findtext("pcie_gen/current_link_gen"),
            "width": link.findtext("link_widths/current_link_width").rstrip("x"),
        }
    return cards


def topo(run):
    """topo shows model, PCI address, link and NUMA node as nvidia-smi -q and sysfs do, and the driver."""
    source, sysfs = _machine(run)
    as_json, as_text = run.once(
        lambda: (run.rlaunch("json", "topo", "--json", *source), run.rlaunch("text", "topo", *source))
    )
    inventory = json.loads(as_json.passed("rlaunch topo --json").out)[0]["inventory"]
    text = as_text.passed("rlaunch topo").out
    shown = {gpu["pci"]["address"]: gpu for gpu in inventory["gpus"] if gpu["vendor"] == "nvidia"}
    cards = _smi_cards(run)
    check(shown and set(shown) == set(cards), f"topo: {sorted(shown)}; nvidia-smi: {sorted(cards)}")
    driver = dict(inventory["system"]["drivers"]).get("nvidia")
    for address, card in cards.items():
        pci, model = shown[address]["pci"], shown[address]["model"]
        check(model == card["model"], f"topo: {model}; nvidia-smi: {card['model']}")
        check(driver == card["driver"], f"topo: driver {driver}; nvidia-smi: {card['driver']}")
        check(pci["driver"] == "nvidia", f"topo: driver of {address} is {pci['driver']}")
        node = int(sysfs(address, "numa_node"))
        check(pci["numa_node"] == (node if node >= 0 else None), f"topo: NUMA node {pci['numa_node']}; sysfs: {node}")
        link = pci["links"][0]["current"] or {"speed": 0, "width": 0}
        seen = (link["speed"] / 10, link["width"])
        by_sysfs = (float(sysfs(address, "current_link_speed").split()[0]), int(sysfs(address, "current_link_width")))
        check(seen == by_sysfs, f"topo: {seen[0]} GT/s x{seen[1]}; sysfs: {by_sysfs[0]} GT/s x{by_sysfs[1]}")
        by_smi = (SPEEDS.get(int(card["generation"])), int(card["width"]))
        check(seen == by_smi, f"topo: {seen[0]} GT/s x{seen[1]}; nvidia-smi: PCIe {card['generation']} x{card['width']}")
        found(rf"gpu {re.escape(address)}: {re.escape(model)}", text, f"no line of {address}")
    return found(r"gpu [0-9a-f]{4}:[^\n]*", text, "no line of a GPU").group()


def _machine(run):
    """Options by which topo reads the machine, and a function that reads sysfs of a PCI device."""
    if run.machine.stand_in:
        card = _card(run)
        recording = run.work / "machine.tar"
        card.write_recording(recording)
        return ["--from", recording], lambda address, name: card.FILES[f"{card.BRIDGES}/{address}/{name}"]
    return [], lambda address, name: Path(f"/sys/bus/pci/devices/{address}/{name}").read_text().strip()


def doctor(run):
    """doctor finds nothing on a healthy machine, and its checks of GPUs have run."""
    ran = run.rlaunch("doctor", "doctor", "--json")
    try:
        report = json.loads(ran.out)
    except ValueError as error:
        raise RowFailed(f"rlaunch doctor --json: {ran.last()}") from error
    findings = [f"{one['severity']} {one['id']}: {one.get('seen', '')}" for one in report["findings"]]
    check(not findings, "; ".join(findings))
    states = {one["id"]: one["state"] for one in report["checks"]}
    wanted = ("gpu.driver", "gpu.peermem", "gpu.iommu", "pcie.degraded", "pcie.power", "numa.far", "odd.driver")
    missing = [f"{name} {states.get(name, 'is not there')}" for name in wanted if states.get(name) != "ran"]
    check(not missing, f"did not run: {', '.join(missing)}")
    ran.passed("rlaunch doctor")
    return f"{sum(state == 'ran' for state in states.values())} checks ran, 0 findings"


def masked(run):
    """Ranks have their LOCAL_RANK, and with --gpu-mask see one GPU, that of nvidia-smi."""
    uuids = [line.strip() for line in run.smi("witness", "--query-gpu=uuid", "--format=csv,noheader").splitlines()]
    seen = run.program("seen.py")
    plain = _ranks(run.rlaunch("plain", "-np", "2", *run.lie_words(), run.python, seen))
    check([rank["local_rank"] for rank in plain] == [0, 1], f"LOCAL_RANK: {[rank['local_rank'] for rank in plain]}")
    own = os.environ.get("CUDA_VISIBLE_DEVICES")
    check(all(rank["visible"] == own for rank in plain), f"without --gpu-mask: CUDA_VISIBLE_DEVICES={plain[0]['visible']}")
    check(all(rank["count"] == len(uuids) for rank in plain), f"ranks: {plain[0]['count']} GPUs; nvidia-smi: {len(uuids)}")
    (one,) = _ranks(run.rlaunch("masked", "-np", "1", "--gpu-mask", *run.lie_words(), run.python, seen, "--masked"))
    check(one["visible"] == "0" and one["order"] == "PCI_BUS_ID", f"--gpu-mask: {one['visible']}, {one['order']}")
    check(one["count"] == 1, f"--gpu-mask: torch sees {one['count']} GPUs")
    # Both lie alike beside a stand-in, whose truth is known otherwise.
    expected = _card(run).UUID if run.machine.stand_in else uuids[0]
    check(one["uuid"] == expected, f"torch: {one['uuid']}; nvidia-smi: {expected}")
    return f"LOCAL_RANK 0 and 1; CUDA_VISIBLE_DEVICES=0 is {one['uuid']}"


def _card(run):
    """Module that knows the machine of the stand-ins."""
    sys.path.insert(0, str(run.machine.stand_in))
    import card

    return card


def _ranks(ran):
    ran.passed(" ".join(ran.words[1:4]))
    return sorted((json.loads(line) for line in ran.out.splitlines() if line.startswith("{")), key=lambda rank: rank["rank"])


def _under_load(run, look):
    """What ``look`` returns while the GPU is busy, with two readings of nvidia-smi around it."""
    with run.spawn("load", [run.python, run.program("load.py")]) as load:
        load.wait_for_text("busy", 30)
        before = run.smi_values("before", list(COLUMNS))
        seen = run.once(look)
        return seen, before, run.smi_values("after", list(COLUMNS))


def _compare(name, value, before, after, rounding=0.0):
    """Fails unless a value lies within the two readings, but for the column's leeway and rounding."""
    readings = [reading[name] for reading in (before, after)]
    if None in readings:
        raise RowFailed(f"nvidia-smi has no {name}")
    leeway = COLUMNS[name] + rounding
    holds = min(readings) - leeway <= value <= max(readings) + leeway
    check(holds, f"{name}: {value:g}; nvidia-smi: {readings[0]:g} before, {readings[1]:g} after")


UNITS = {"B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "TiB": 1024.0**4}


def monitor(run):
    """monitor --once shows use, memory, power and temperature as nvidia-smi does."""

    def look():
        return run.rlaunch("monitor", "monitor", "-H", "localhost", "--once").passed("rlaunch monitor --once").out

    text, before, after = _under_load(run, look)
    number = r"([\d.]+)"
    line = rf"localhost +0 +(\d+) % +{number}(?: (\w+))? of {number} (\w+) +(\d+) W +(\d+) °C"
    match = found(line, text, "no line of GPU 0")
    busy, used, used_unit, total, unit, power, temperature = match.groups()
    _compare("utilization.gpu", float(busy), before, after)
    # As few digits are shown as a person reads.
    for name, shown, shown_unit in (("memory.used", used, used_unit or unit), ("memory.total", total, unit)):
        mib = UNITS[shown_unit] / MIB
        digits = len(shown.partition(".")[2])
        _compare(name, float(shown) * mib, before, after, 0.5 * 10**-digits * mib + 1)
    _compare("power.draw", float(power), before, after, 0.5)
    _compare("temperature.gpu", float(temperature), before, after)
    return " ".join(match.group().split())


def metrics(run):
    """monitor --listen tells Prometheus what nvidia-smi shows."""
    words = [run.machine.rlaunch, "monitor", "-H", "localhost", "--listen", "127.0.0.1:0"]

    def look():
        with run.spawn("monitor", words) as server:
            deadline = time.monotonic() + 10
            while not (url := re.search(r"http://[\d.]+:\d+", server.output() + server.err_file.read_text())):
                check(server.child.poll() is None and time.monotonic() < deadline, f"no address: {server.ran().last()}")
                time.sleep(0.05)
            # The first reading of a GPU comes a second after the first question.
            while "rlaunch_gpu_" not in (text := _get(url.group() + "/metrics")) and time.monotonic() < deadline:
                time.sleep(0.3)
        (run.logs / "metrics.txt").write_text(text)
        return text

    text, before, after = _under_load(run, look)
    values = {name: float(value) for name, value in re.findall(r'rlaunch_gpu_(\w+)\{[^}]*gpu="0"[^}]*\} (\S+)', text)}
    scales = {
        "busy_ratio": ("utilization.gpu", 100.0),
        "memory_used_bytes": ("memory.used", 1 / MIB),
        "memory_bytes": ("memory.total", 1 / MIB),
        "power_watts": ("power.draw", 1.0),
        "temperature_celsius": ("temperature.gpu", 1.0),
    }
    missing = set(scales) - set(values)
    check(not missing, f"no rlaunch_gpu_{', rlaunch_gpu_'.join(sorted(missing))}")
    for name, (column, scale) in scales.items():
        _compare(column, values[name] * scale, before, after, 0.01)
    return ", ".join(f"{name} {values[name]:g}" for name in scales)


def _get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except OSError as error:
        raise RowFailed(f"{url}: {error}") from error
