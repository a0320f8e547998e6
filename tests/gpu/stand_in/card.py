"""A machine with one H200, as its tools and its sysfs show it. Stand-ins and rows take every value from here."""

import io
import tarfile

ADDRESS = "0000:19:00.0"
MODEL = "NVIDIA H200"
UUID = "GPU-2f1a5c3e-7b60-4d18-9a53-0c6d5e8b7a21"
DRIVER = "580.95.05"
NUMA_NODE = 1
# The columns of `nvidia-smi --query-gpu`, without units.
VALUES = {
    "index": "0",
    "name": MODEL,
    "uuid": UUID,
    "driver_version": DRIVER,
    "pci.bus_id": "00000000:19:00.0",
    "utilization.gpu": "97",
    "memory.used": "5873",
    "memory.total": "143771",
    "power.draw": "412.58",
    "temperature.gpu": "47",
}
UNITS = {"utilization.gpu": " %", "memory.used": " MiB", "memory.total": " MiB", "power.draw": " W"}
# What each lie changes in the columns.
LIES = {
    "uuid": {"uuid": "GPU-00000000-0000-0000-0000-000000000000"},
    "busy": {"utilization.gpu": "3"},
    "used": {"memory.used": "6385"},
    "total": {"memory.total": "81559"},
    "power": {"power.draw": "71.20"},
    "temperature": {"temperature.gpu": "58"},
    "address": {"pci.bus_id": "00000000:3B:00.0"},
    "model": {"name": "NVIDIA H100 80GB HBM3"},
    "driver": {"driver_version": "535.183.01"},
}


def values(lie):
    return {**VALUES, **LIES.get(lie, {})}


def xml(lie):
    """The part of `nvidia-smi -q -x` that rows read, in its form."""
    card = values(lie)
    generation = "3" if lie == "generation" else "5"
    width = "8x" if lie == "width" else "16x"
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<driver_version>{card["driver_version"]}</driver_version>
	<gpu id="{card["pci.bus_id"]}">
		<product_name>{card["name"]}</product_name>
		<pci>
			<pci_bus_id>{card["pci.bus_id"]}</pci_bus_id>
			<pci_gpu_link_info>
				<pcie_gen><current_link_gen>{generation}</current_link_gen></pcie_gen>
				<link_widths><current_link_width>{width}</current_link_width></link_widths>
			</pci_gpu_link_info>
		</pci>
	</gpu>
</nvidia_smi_log>
"""


LINK = {
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
}
BRIDGES = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0"
# Files and links of the machine, by path.
FILES = {
    "/proc/self/status": "Name:\trlaunch-worker\nCpus_allowed_list:\t0-15\n",
    "/proc/sys/kernel/osrelease": "6.8.0-85-generic",
    "/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n",
    f"/proc/driver/nvidia/gpus/{ADDRESS}/information": f"Model: \t\t {MODEL}\nBus Location: \t {ADDRESS}\n",
    "/sys/module/nvidia/version": DRIVER,
    "/sys/devices/system/cpu/online": "0-15",
    "/sys/devices/system/node/node0/cpulist": "0-7",
    "/sys/devices/system/node/node0/distance": "10 21",
    "/sys/devices/system/node/node1/cpulist": "8-15",
    "/sys/devices/system/node/node1/distance": "21 10",
    **{f"{BRIDGES}/{ADDRESS}/{name}": text for name, text in LINK.items()},
    f"{BRIDGES}/{ADDRESS}/vendor": "0x10de",
    f"{BRIDGES}/{ADDRESS}/device": "0x2335",
    f"{BRIDGES}/{ADDRESS}/class": "0x030200",
    f"{BRIDGES}/{ADDRESS}/numa_node": str(NUMA_NODE),
    "/sys/bus/pci/drivers/nvidia/module": "",
}
LINKS = {
    f"/sys/bus/pci/devices/{ADDRESS}": f"../../../devices/{BRIDGES.removeprefix('/sys/devices/')}/{ADDRESS}",
    f"{BRIDGES}/{ADDRESS}/driver": "../../../../../../bus/pci/drivers/nvidia",
}


def write_recording(path, host="h200"):
    """Writes the machine as `rlaunch topo --from` reads it."""
    with tarfile.open(path, "w") as tar:
        for name, text in FILES.items():
            entry = tarfile.TarInfo(host + name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(host + name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
