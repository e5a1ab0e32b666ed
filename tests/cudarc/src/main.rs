//! A Rust program that uses CUDA through the crate cudarc: PTX from text, launches, copies,
//! streams, events.
//!
//! Nothing in it knows Sluice. Prints its seed and PASS or FAIL, and exits with 1 on a failure.

use std::time::{SystemTime, UNIX_EPOCH};

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// `out[i] = a * x[i] + y[i]` and, in the second kernel, the sum of 64-bit integers by atomics.
const PTX: &str = r#"
.version 7.0
.target sm_70
.address_size 64

.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u64 out, .param .u32 n)
{
    .reg .pred %outside;
    .reg .b32 %i, %block, %width, %n;
    .reg .f32 %a, %vx, %vy;
    .reg .b64 %x, %y, %out, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.s32 %i, %block, %width, %i;
    ld.param.u32 %n, [n];
    setp.ge.u32 %outside, %i, %n;
    @%outside bra DONE;
    ld.param.f32 %a, [a];
    ld.param.u64 %x, [x];
    ld.param.u64 %y, [y];
    ld.param.u64 %out, [out];
    mul.wide.u32 %offset, %i, 4;
    add.s64 %x, %x, %offset;
    add.s64 %y, %y, %offset;
    add.s64 %out, %out, %offset;
    ld.global.f32 %vx, [%x];
    ld.global.f32 %vy, [%y];
    fma.rn.f32 %vy, %a, %vx, %vy;
    st.global.f32 [%out], %vy;
DONE:
    ret;
}

.visible .entry total(.param .u64 values, .param .u64 sum, .param .u32 n)
{
    .reg .pred %outside;
    .reg .b32 %i, %block, %width, %n;
    .reg .b64 %values, %sum, %value, %offset;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.s32 %i, %block, %width, %i;
    ld.param.u32 %n, [n];
    setp.ge.u32 %outside, %i, %n;
    @%outside ret;
    ld.param.u64 %values, [values];
    ld.param.u64 %sum, [sum];
    mul.wide.u32 %offset, %i, 8;
    add.s64 %values, %values, %offset;
    ld.global.u64 %value, [%values];
    red.global.add.u64 [%sum], %value;
    ret;
}
"#;

fn main() -> Result<(), DriverError> {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| elapsed.subsec_nanos().into())
    });
    println!("seed {seed} (repeat with SEED={seed})");
    let mut random = Random(seed);
    let mut good = true;

    let context = CudaContext::new(0)?;
    println!("{}", context.name()?);
    let module = context.load_module(Ptx::from_src(PTX))?;
    let saxpy = module.load_function("saxpy")?;
    let total = module.load_function("total")?;
    let stream = context.new_stream()?;

    for n in [1usize, 32, 1000, 65_537] {
        let a = 2.5f32;
        let x: Vec<f32> = (0..n).map(|_| random.unit()).collect();
        let y: Vec<f32> = (0..n).map(|_| random.unit()).collect();
        let (dx, dy) = (stream.clone_htod(&x)?, stream.clone_htod(&y)?);
        let mut out = stream.alloc_zeros::<f32>(n)?;
        let count = n as u32;
        let mut launch = stream.launch_builder(&saxpy);
        launch.arg(&a).arg(&dx).arg(&dy).arg(&mut out).arg(&count);
        // SAFETY: the arguments are the kernel's parameters, and it writes `n` elements of `out`
        // only.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
        let got = stream.clone_dtoh(&out)?;
        let same = (0..n).all(|i| got[i] == a.mul_add(x[i], y[i]));
        println!("{} saxpy of {n}", if same { "ok  " } else { "FAIL" });
        good &= same;

        let values: Vec<u64> = (0..n).map(|_| random.next()).collect();
        let device_values = stream.clone_htod(&values)?;
        let mut sum = stream.alloc_zeros::<u64>(1)?;
        let mut launch = stream.launch_builder(&total);
        launch.arg(&device_values).arg(&mut sum).arg(&count);
        // SAFETY: the arguments are the kernel's parameters, and it writes one element of `sum`
        // only.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
        let same =
            stream.clone_dtoh(&sum)? == [values.iter().fold(0u64, |sum, value| sum.wrapping_add(*value))];
        println!("{} sum of {n} by atomics", if same { "ok  " } else { "FAIL" });
        good &= same;
    }

    let missing = module.load_function("no_such_kernel").is_err();
    println!("{} a missing kernel is an error", if missing { "ok  " } else { "FAIL" });
    good &= missing;

    println!("{}", if good { "PASS" } else { "FAIL" });
    std::process::exit(i32::from(!good));
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }
}
