//! Modules and libraries of random texts: loaded in all ways, asked for what they have, and
//! unloaded.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use sluice_cuda::*;

use crate::answer::{Answer, digest};
use crate::program::{Program, Sent, ok};
use crate::references;

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuModuleLoad", |p| lives(p, By::File)),
    ("cuModuleLoadData", |p| lives(p, By::Data)),
    ("cuModuleLoadDataEx", |p| lives(p, By::DataWithOptions)),
    ("cuModuleUnload", |p| lives(p, By::Data)),
    ("cuModuleGetFunction", |p| lives(p, By::Data)),
    ("cuModuleGetGlobal_v2", |p| lives(p, By::Data)),
    ("cuModuleGetTexRef", |p| lives(p, By::Data)),
    ("cuModuleGetSurfRef", |p| lives(p, By::Data)),
    ("cuTexRefSetArray", |p| lives(p, By::Data)),
    ("cuTexRefGetArray", |p| lives(p, By::Data)),
    ("cuTexRefSetMipmappedArray", |p| lives(p, By::Data)),
    ("cuTexRefGetMipmappedArray", |p| lives(p, By::Data)),
    ("cuTexRefSetAddress2D_v2", |p| lives(p, By::Data)),
    ("cuTexRefSetAddress2D_v3", |p| lives(p, By::Data)),
    ("cuTexRefGetBorderColor", |p| lives(p, By::Data)),
    ("cuSurfRefSetArray", |p| lives(p, By::Data)),
    ("cuSurfRefGetArray", |p| lives(p, By::Data)),
    ("cuLibraryLoadData", |p| lives(p, By::Library)),
    ("cuLibraryLoadFromFile", |p| lives(p, By::LibraryFile)),
    ("cuLibraryUnload", |p| lives(p, By::Library)),
    ("cuLibraryGetKernel", |p| lives(p, By::Library)),
    ("cuLibraryGetGlobal", |p| lives(p, By::Library)),
];

/// How it is loaded.
#[derive(Clone, Copy, PartialEq)]
enum By {
    File,
    Data,
    DataWithOptions,
    Library,
    LibraryFile,
}

/// What was loaded.
#[derive(Clone, Copy)]
enum Loaded {
    Module(CUmodule),
    Library(CUlibrary),
}

fn lives(p: &mut Program, by: By) {
    // Once in a while is enough: they take longer than all others.
    if !p.once_in(6) {
        return;
    }
    let (name, bytes) = (format!("name_{:x}", p.next()), p.within(1, 5_000) as usize);
    let padding = p.size();
    let filler: String = (0..padding).map(|_| (b'a' + p.within(0, 25) as u8) as char).collect();
    let text = format!(
        ".version 7.0\n.target sm_75\n.address_size 64\n// {filler}\n\
         .visible .global .align 8 .b8 variable_{name}[{bytes}];\n.visible .entry {name}() {{ ret; }}\n"
    );
    let mut sent = Sent::new("cuModuleLoadDataEx");
    sent.value(text.len());
    sent.value(digest(text.as_bytes()));
    let registers = p.within(16, 255) as u32;
    if matches!(by, By::DataWithOptions) {
        sent.value(CUjit_option::MAX_REGISTERS);
        sent.value(registers);
    }
    let loaded = load(p, &text, by, registers);
    p.check(sent, false, CUresult::SUCCESS, &[]);
    let number = p.count_of("Module");
    let module = match loaded {
        Loaded::Module(module) => module,
        Loaded::Library(library) => {
            let mut module = CUmodule::NULL;
            // SAFETY: a live library, and a place.
            ok(unsafe { p.cuda.cuLibraryGetModule.expect("exported")(&mut module, library) });
            module
        }
    };
    p.module(module);
    function(p, loaded, number, &name);
    variable(p, loaded, number, &format!("variable_{name}"), bytes);
    references::of_module(p, module, number, &CString::new(name).expect("no NUL in it"));
    let mut sent = Sent::new("cuModuleUnload");
    sent.number(number);
    // SAFETY: what is live.
    let result = unsafe {
        match loaded {
            Loaded::Module(module) => p.cuda.cuModuleUnload.expect("exported")(module),
            Loaded::Library(library) => p.cuda.cuLibraryUnload.expect("exported")(library),
        }
    };
    p.check(sent, false, result, &[]);
    p.forget_number("Module", number);
}

fn load(p: &Program, text: &str, by: By, registers: u32) -> Loaded {
    let image = CString::new(text).expect("no NUL in it");
    let start: *const c_void = image.as_ptr().cast();
    let file = p.file.with_extension("ptx");
    let path = CString::new(file.as_os_str().as_encoded_bytes()).expect("no NUL in it");
    if matches!(by, By::File | By::LibraryFile) {
        std::fs::write(&file, text).expect("the file can be written");
    }
    let (mut module, mut library) = (CUmodule::NULL, CUlibrary::NULL);
    let (none, no_values, no_options) = (null_mut(), null_mut(), null_mut());
    // SAFETY: text that ends with NUL, names, and places.
    let result = unsafe {
        match by {
            By::File => p.cuda.cuModuleLoad.expect("exported")(&mut module, path.as_ptr()),
            By::Data => p.cuda.cuModuleLoadData.expect("exported")(&mut module, start),
            By::DataWithOptions => {
                // The time is the client's own to say, or not.
                let mut options = [CUjit_option::WALL_TIME, CUjit_option::MAX_REGISTERS];
                let mut values = [0, registers as usize].map(std::ptr::without_provenance_mut::<c_void>);
                let call = p.cuda.cuModuleLoadDataEx.expect("exported");
                call(&mut module, start, 2, options.as_mut_ptr(), values.as_mut_ptr())
            }
            By::Library => {
                let call = p.cuda.cuLibraryLoadData.expect("exported");
                call(&mut library, start, none, no_values, 0, no_options, no_values, 0)
            }
            By::LibraryFile => {
                let call = p.cuda.cuLibraryLoadFromFile.expect("exported");
                call(&mut library, path.as_ptr(), none, no_values, 0, no_options, no_values, 0)
            }
        }
    };
    ok(result);
    if library.is_null() { Loaded::Module(module) } else { Loaded::Library(library) }
}

/// Asks for a function, and for what the driver says of its code.
fn function(p: &mut Program, loaded: Loaded, number: u64, name: &str) {
    let text = CString::new(name).expect("no NUL in it");
    let (mut function, mut kernel) = (CUfunction::NULL, CUkernel::NULL);
    // SAFETY: what is live, names, and places; here and below.
    let result = unsafe {
        match loaded {
            Loaded::Module(module) => {
                p.cuda.cuModuleGetFunction.expect("exported")(&mut function, module, text.as_ptr())
            }
            Loaded::Library(library) => {
                ok(p.cuda.cuLibraryGetKernel.expect("exported")(&mut kernel, library, text.as_ptr()));
                p.cuda.cuKernelGetFunction.expect("exported")(&mut function, kernel)
            }
        }
    };
    named(p, "cuModuleGetFunction", number, name, result);
    use CUfunction_attribute as A;
    for attribute in
        [A::CONST_SIZE_BYTES, A::LOCAL_SIZE_BYTES, A::NUM_REGS, A::PTX_VERSION, A::BINARY_VERSION]
    {
        let mut value = 0;
        // SAFETY: as above.
        ok(unsafe { p.cuda.cuFuncGetAttribute.expect("exported")(&mut value, attribute, function) });
        assert_eq!(value, Answer::attribute(name.as_bytes(), attribute.0), "attribute {}", attribute.0);
    }
}

/// Asks for a variable, and writes and reads it.
fn variable(p: &mut Program, loaded: Loaded, number: u64, name: &str, bytes: usize) {
    let text = CString::new(name).expect("no NUL in it");
    let (mut address, mut size) = (0, 0);
    // SAFETY: what is live, a name, and places.
    let result = unsafe {
        match loaded {
            Loaded::Module(module) => {
                let call = p.cuda.cuModuleGetGlobal_v2.expect("exported");
                call(&mut address, &mut size, module, text.as_ptr())
            }
            Loaded::Library(library) => {
                let call = p.cuda.cuLibraryGetGlobal.expect("exported");
                call(&mut address, &mut size, library, text.as_ptr())
            }
        }
    };
    named(p, "cuModuleGetGlobal_v2", number, name, result);
    assert_eq!(size, bytes, "bytes of a variable");
    p.line(&format!("global {address:x} {size:x}"));
    let (written, mut read) = (p.bytes(bytes), vec![0; bytes]);
    // SAFETY: the variable and both buffers have as many bytes.
    unsafe {
        ok(p.cuda.cuMemcpyHtoD_v2.expect("exported")(address, written.as_ptr().cast(), bytes));
        ok(p.cuda.cuMemcpyDtoH_v2.expect("exported")(read.as_mut_ptr().cast(), address, bytes));
    }
    assert!(read == written, "a variable of {bytes} bytes");
    let region = p.pick_region(false);
    p.region(region).up(bytes);
    p.region(region).down(bytes);
}

fn named(p: &mut Program, function: &'static str, module: u64, name: &str, result: CUresult) {
    let mut sent = Sent::new(function);
    sent.number(module);
    sent.values(name.as_bytes());
    p.check(sent, false, result, &[]);
}
