//! Functions of CUDA's device runtime that programs leave to the linker (CUDA C++ Programming
//! Guide, "Cooperative Groups").
//!
//! Toolkits ship them as machine code in `libcudadevrt.a`. They are small, and what they do is
//! documented, so a link of PTX gets these texts instead.

use crate::ast::Function;
use crate::error::ParseError;
use crate::index::ModuleIndex;

/// The barrier of a cooperative launch. Its word is behind the first one of the grid's workspace,
/// where the barriers that `cooperative_groups.h` inlines find it too, and they count alike: the
/// first block adds the amount with which the last one to come flips the highest bit.
const COOPERATIVE_GROUPS: &str = "
.weak .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.b32 %r1, [scope];
    mov.u32 %r2, %envreg2;
    mov.u32 %r3, %envreg1;
    mov.b64 %rd1, {%r2, %r3};
    // 1 is the scope of a grid.
    setp.eq.u32 %p1, %r1, 1;
    selp.b64 %rd2, %rd1, 0, %p1;
    st.param.b64 [handle], %rd2;
    ret;
}

.weak .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
    .reg .pred %p<6>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<2>;
    ld.param.b64 %rd1, [handle];
    setp.eq.u64 %p1, %rd1, 0;
    @%p1 bra invalid;
    barrier.sync 0;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %tid.y;
    mov.u32 %r3, %tid.z;
    or.b32 %r1, %r1, %r2;
    or.b32 %r1, %r1, %r3;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra arrived;
    mov.u32 %r4, %nctaid.x;
    mov.u32 %r5, %nctaid.y;
    mul.lo.u32 %r4, %r4, %r5;
    mov.u32 %r5, %nctaid.z;
    mul.lo.u32 %r4, %r4, %r5;
    mov.u32 %r6, %ctaid.x;
    mov.u32 %r7, %ctaid.y;
    mov.u32 %r8, %ctaid.z;
    or.b32 %r6, %r6, %r7;
    or.b32 %r6, %r6, %r8;
    // The first block adds 0x80000000 - (blocks - 1), each other 1.
    sub.u32 %r9, 0x80000001, %r4;
    setp.eq.u32 %p3, %r6, 0;
    selp.u32 %r9, %r9, 1, %p3;
    membar.gl;
    atom.global.add.u32 %r10, [%rd1+4], %r9;
wait:
    ld.volatile.global.u32 %r11, [%rd1+4];
    xor.b32 %r12, %r10, %r11;
    setp.ge.s32 %p4, %r12, 0;
    @%p4 bra wait;
    membar.gl;
arrived:
    barrier.sync 0;
    mov.u32 %r13, 0;
    st.param.b32 [error], %r13;
    ret;
invalid:
    // cudaErrorInvalidValue
    mov.u32 %r13, 1;
    st.param.b32 [error], %r13;
    ret;
}
";

/// What is to be linked to texts so that functions of the device runtime which they declare are
/// defined. Nothing where they declare none, or bring their own.
pub fn missing(texts: &[&[u8]]) -> Result<Option<&'static [u8]>, ParseError> {
    // Most programs do not use it, and their texts may be long.
    if !texts.iter().any(|text| mentions(text, b"cudaCG")) {
        return Ok(None);
    }
    let names = ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize"];
    let mut is_declared = false;
    let mut defined = 0;
    for text in texts {
        let index = ModuleIndex::new(*text)?;
        let known = |function: &&Function| names.contains(&&*function.name);
        for function in index.functions().iter().filter(known) {
            is_declared |= function.body.is_none();
            defined += usize::from(function.body.is_some());
        }
    }
    Ok((is_declared && defined < names.len()).then_some(COOPERATIVE_GROUPS.as_bytes()))
}

fn mentions(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    fn missing_of(text: &str) -> bool {
        missing(&[format!("{HEADER}{text}").as_bytes()]).expect("PTX").is_some()
    }

    #[test]
    fn the_runtime_is_wanted_where_its_functions_are_declared_and_nobody_defines_them() {
        let declared = ".extern .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 a);\n";
        let defined = ".weak .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 a) { ret; }
            .weak .func (.param .b32 r) cudaCGSynchronize (.param .b64 h, .param .b32 f) { ret; }";
        assert!(missing_of(declared));
        assert!(!missing_of(defined));
        assert!(!missing_of(".visible .entry k() { ret; } // cudaCGSynchronize"));
    }

    #[test]
    fn the_texts_are_ptx() {
        crate::parse(format!("{HEADER}{COOPERATIVE_GROUPS}")).expect("PTX");
    }
}
