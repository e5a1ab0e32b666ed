//! Machine code that one compiler stores and another one uses, as two processes do.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use common::{Device, Params, lower};
use sluice_jit::{CodeKey, CodeStore, Compiler, LaunchConfig};

/// A store in memory, with a count of what was written.
#[derive(Default)]
struct Store {
    codes: Mutex<HashMap<String, Vec<u8>>>,
    writes: Mutex<usize>,
}

impl CodeStore for Store {
    fn read(&self, key: &CodeKey) -> Option<Vec<u8>> {
        self.codes.lock().unwrap().get(&key.to_string()).cloned()
    }

    fn write(&self, key: &CodeKey, code: &[u8]) {
        self.codes.lock().unwrap().insert(key.to_string(), code.to_vec());
        *self.writes.lock().unwrap() += 1;
    }
}

/// Each thread computes the exponential of its word, a call of the runtime, and adds `addend`.
fn text(addend: u32) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
.visible .entry k(.param .u64 data)\n{{
.reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<3>;
ld.param.u64 %rd1, [data]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
ld.global.f32 %f1, [%rd1]; ex2.approx.f32 %f2, %f1; cvt.rni.u32.f32 %r2, %f2; add.u32 %r3, %r2, {addend};
st.global.u32 [%rd1], %r3; ret;\n}}\n"
    )
}

/// What a compiler with this store makes of the kernel, on 64 threads.
fn run(store: &Arc<Store>, addend: u32, threads: u32) -> Vec<u32> {
    let compiler = Compiler::new().unwrap();
    assert!(compiler.set_code_store(Arc::clone(store) as Arc<dyn CodeStore>), "this build has no build id");
    let kernel = compiler.prepare(lower(&text(addend), "k"));
    let mut device = Device::new(1);
    let data = device.floats(&(0..threads).map(|thread| (thread % 16) as f32).collect::<Vec<_>>());
    let params = Params::default().pointer(data).0;
    let config =
        LaunchConfig { grid: [1; 3], block: [threads, 1, 1], params: &params, ..LaunchConfig::default() };
    device.launch(&kernel, &config).unwrap();
    device.read_words(data, threads as usize)
}

fn expected(addend: u32, threads: u32) -> Vec<u32> {
    (0..threads).map(|thread| (1 << (thread % 16)) + addend).collect()
}

#[test]
fn another_compiler_uses_what_was_stored() {
    let store = Arc::new(Store::default());
    for _ in 0..2 {
        assert_eq!(run(&store, 1, 64), expected(1, 64));
        assert_eq!(*store.writes.lock().unwrap(), 1);
    }
    // Another kernel has another key.
    assert_eq!(run(&store, 2, 64), expected(2, 64));
    assert_eq!(*store.writes.lock().unwrap(), 2);
    // What is executed is what is stored: with the two exchanged, each computes the other.
    {
        let mut codes = store.codes.lock().unwrap();
        let keys: Vec<String> = codes.keys().cloned().collect();
        let first = codes[&keys[0]].clone();
        let second = codes.insert(keys[1].clone(), first).unwrap();
        codes.insert(keys[0].clone(), second);
    }
    assert_eq!(run(&store, 2, 64), expected(1, 64));
}

#[test]
fn damaged_code_is_compiled_anew() {
    let store = Arc::new(Store::default());
    run(&store, 1, 64);
    for code in store.codes.lock().unwrap().values_mut() {
        let middle = code.len() / 2;
        code[middle] ^= 1;
    }
    assert_eq!(run(&store, 1, 64), expected(1, 64));
    assert_eq!(*store.writes.lock().unwrap(), 2);
    store.codes.lock().unwrap().values_mut().for_each(Vec::clear);
    assert_eq!(run(&store, 1, 64), expected(1, 64));
}

#[test]
fn code_by_llvm_is_stored_beside_the_other_and_used_by_itself() {
    if let Err(reason) = sluice_jit::llvm_library() {
        return println!("SKIPPED: {reason}");
    }
    let store = Arc::new(Store::default());
    let mut found = Vec::new();
    for makes in [true, false] {
        let compiler = Compiler::new().unwrap();
        compiler.set_optimizes(true);
        assert!(compiler.set_code_store(store.clone()));
        let kernel = compiler.prepare(lower(&text(3), "k"));
        if makes {
            kernel.optimize([32, 1, 1]).unwrap();
        }
        let mut device = Device::new(1);
        let data = device.words(&(0..32u32).map(|lane| (lane as f32 / 4.0).to_bits()).collect::<Vec<_>>());
        let params = Params::default().pointer(data);
        let config = LaunchConfig { block: [32, 1, 1], params: &params.0, ..LaunchConfig::default() };
        device.launch(&kernel, &config).unwrap();
        found.push(device.read_words(data, 32));
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0][4], 2 + 3);
    assert_eq!(*store.writes.lock().unwrap(), 1, "Cranelift was not asked");
}
