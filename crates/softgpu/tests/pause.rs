//! Holding back one device and not the others.

use sluice_cuda::*;

mod common;
use common::*;

/// A fill, a kernel and a copy on a device, not waited for.
struct Work {
    context: Context,
    x: CUdeviceptr,
    done: CUevent,
}

impl Work {
    fn start(device: CUdevice) -> Work {
        let context = Context::new(device);
        let (add, x, done) = (function(module(ADD), "add"), allocate(8), event());
        let (mut to, mut count, mut value) = (x, 1_u32, 3_u32);
        ok!(cuMemsetD32Async(x, 4, 1, CUstream::NULL));
        let mut parameters = [arg(&mut to), arg(&mut count), arg(&mut value)];
        assert!(launch(add, 1, 32, CUstream::NULL, &mut parameters).is_success());
        ok!(cuMemcpyDtoDAsync_v2(x + 4, x, 4, CUstream::NULL));
        ok!(cuEventRecord(done, CUstream::NULL));
        Work { context, x, done }
    }

    fn finish(self) {
        ok!(cuEventSynchronize(self.done));
        assert_eq!(read::<u32>(self.x, 2), [7, 7]);
        drop(self.context);
    }
}

#[test]
fn a_paused_device_begins_nothing_and_the_others_go_on() {
    assert!(sluice_softgpu::control(0).is_none(), "before cuInit");
    Work::start(1).finish();
    assert!(sluice_softgpu::control(3).is_none(), "three devices");
    let control = sluice_softgpu::control(0).expect("the first of them");

    control.pause();
    let held = Work::start(0);
    std::thread::spawn(|| Work::start(1).finish()).join().expect("the other device goes on");
    assert_eq!(result!(cuEventQuery(held.done)), CUresult::NOT_READY);
    control.resume();
    held.finish();
}
