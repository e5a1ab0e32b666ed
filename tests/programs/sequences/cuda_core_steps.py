"""cuda.core's and cuda.bindings' calls, one kind after the other. Results are not looked at: this also runs where kernels are only
recorded."""

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, EventOptions, LaunchConfig, ObjectCode, Program, ProgramOptions, launch
from steps import Steps

step = Steps()
SOURCE = 'extern "C" __global__ void fill(int *x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] = value; }'
PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 place, .param .u32 value) { ret; }
"""


class State:
    """What one step leaves to the next."""


state = State()


def launched(kernel):
    launch(state.stream, LaunchConfig(grid=8, block=128), kernel, int(state.buffer.handle), np.int32(7))
    state.stream.sync()


@step("device")
def _():
    state.device = Device()
    state.device.set_current()
    return state.device.name, state.device.compute_capability


@step("props")
def _():
    device = state.device
    return device.properties.multiprocessor_count, device.uuid, device.pci_bus_id


@step("stream")
def _():
    state.stream = state.device.create_stream()
    return state.stream


@step("alloc")
def _():
    state.buffer = state.device.allocate(4096, stream=state.stream)
    return state.buffer.size


@step("cubin")
def _():
    options = ProgramOptions(arch="sm_" + "".join(map(str, state.device.compute_capability)))
    kernel = Program(SOURCE, code_type="c++", options=options).compile("cubin").get_kernel("fill")
    launched(kernel)
    assert kernel.attributes.max_threads_per_block >= 128
    return kernel.attributes.num_regs


@step("ptx")
def _():
    launched(ObjectCode.from_ptx(PTX.encode()).get_kernel("fill"))


@step("event")
def _():
    state.event = state.stream.record(options=EventOptions(timing_enabled=True))
    state.event.sync()
    assert state.event.is_done
    return state.event


@step("close")
def _():
    state.event.close()
    state.buffer.close(state.stream)
    state.stream.close()


@step("cuInit")
def _():
    return driver.cuInit(0)


@step("ver")
def _():
    return driver.cuDriverGetVersion()


step.run()
