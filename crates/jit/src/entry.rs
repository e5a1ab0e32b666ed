//! The way into compiled code and the two ways out: its return, and [`leave`] from anywhere beneath
//! it.

use crate::context::{WarpContext, WarpFunction};

/// Calls `code(warp)` and returns what it returns. The stack pointer to come back to is stored in
/// `*saved_sp` first, so that [`leave`] can end the call early.
///
/// # Safety
/// `code` is compiled code for a warp memory like `warp`; `saved_sp` stays valid until the call
/// ends. Frames between here and a `leave` own nothing that needs dropping.
pub(crate) unsafe fn enter(warp: *mut WarpContext, code: WarpFunction, saved_sp: *mut usize) -> u64 {
    // SAFETY: the assembly keeps the C calling convention; the rest is the caller's promise.
    unsafe { sluice_jit_enter(warp, code, saved_sp) }
}

/// Ends the innermost [`enter`] of this thread: it returns `status`.
///
/// # Safety
/// `saved_sp` is what that `enter` stored, and it has not returned.
pub(crate) unsafe fn leave(saved_sp: usize, status: u32) -> ! {
    // SAFETY: as above.
    unsafe { sluice_jit_leave(saved_sp, status) }
}

/// Where a signal handler sends a faulting thread: the first two argument registers hold `saved_sp`
/// and the status.
#[cfg(target_os = "linux")]
pub(crate) fn leave_address() -> usize {
    sluice_jit_leave as *const () as usize
}

unsafe extern "C" {
    fn sluice_jit_enter(warp: *mut WarpContext, code: WarpFunction, saved_sp: *mut usize) -> u64;
    fn sluice_jit_leave(saved_sp: usize, status: u32) -> !;
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden sluice_jit_enter",
    ".globl sluice_jit_enter",
    "sluice_jit_enter:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov [rdx], rsp",
    "call rsi",
    "2:",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".p2align 4",
    ".hidden sluice_jit_leave",
    ".globl sluice_jit_leave",
    "sluice_jit_leave:",
    "mov rsp, rdi",
    "mov eax, esi",
    "jmp 2b",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden sluice_jit_enter",
    ".globl sluice_jit_enter",
    "sluice_jit_enter:",
    "stp x29, x30, [sp, #-160]!",
    "mov x29, sp",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]",
    "stp d10, d11, [sp, #112]",
    "stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]",
    "mov x3, sp",
    "str x3, [x2]",
    "blr x1",
    "2:",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]",
    "ldp d12, d13, [sp, #128]",
    "ldp d14, d15, [sp, #144]",
    "ldp x29, x30, [sp], #160",
    "ret",
    ".p2align 4",
    ".hidden sluice_jit_leave",
    ".globl sluice_jit_leave",
    "sluice_jit_leave:",
    "mov sp, x0",
    "mov w0, w1",
    "b 2b",
);
