//! Turns SIGSEGV and SIGBUS inside the device address range into a fault of the grid.
//!
//! A thread that enters compiled code publishes a [`Guard`]; the handler looks only at its own
//! thread's. A signal that is not ours (no guard, or an address outside of the range) goes to the
//! handler that was there before.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use crate::context::status;
use crate::entry;

/// What the handler needs about the compiled code that its thread runs.
#[repr(C)]
pub(crate) struct Guard {
    /// Where [`entry::leave`] goes.
    pub saved_sp: usize,
    pub memory_base: u64,
    pub memory_size: u64,
    /// Set by the handler: the address that faulted.
    pub address: Option<u64>,
}

thread_local! {
    static GUARD: Cell<*mut Guard> = const { Cell::new(ptr::null_mut()) };
}

/// Publishes `guard` for this thread; null takes it back. Installs the handlers at the first call.
///
/// # Safety
/// A guard stays valid, and is not moved, until it is taken back.
pub(crate) unsafe fn guard_thread(guard: *mut Guard) {
    install();
    GUARD.set(guard);
}

struct Previous {
    segv: libc::sigaction,
    bus: libc::sigaction,
}

static PREVIOUS: OnceLock<Previous> = OnceLock::new();

fn install() {
    PREVIOUS.get_or_init(|| Previous { segv: replace(libc::SIGSEGV), bus: replace(libc::SIGBUS) });
}

fn replace(signal: libc::c_int) -> libc::sigaction {
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: both structures are valid; a zeroed `sigaction` is one with the default action, which
    // remains should the call fail.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal, &action, previous.as_mut_ptr());
        previous.assume_init()
    }
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let guard = GUARD.get();
    if !guard.is_null() {
        // SAFETY: a published guard is valid, and only this thread uses it; the kernel hands a
        // valid siginfo.
        let (guard, address) = unsafe { (&mut *guard, (*info).si_addr() as u64) };
        if address.wrapping_sub(guard.memory_base) < guard.memory_size {
            guard.address = Some(address);
            // SAFETY: `context` is the interrupted thread's, which is inside the `enter` that
            // stored `saved_sp`.
            unsafe { resume_at_leave(context.cast(), guard.saved_sp) };
            return;
        }
    }
    // SAFETY: the arguments are the ones that the kernel gave us.
    unsafe { chain(signal, info, context) };
}

#[cfg(target_arch = "x86_64")]
unsafe fn resume_at_leave(context: *mut libc::ucontext_t, saved_sp: usize) {
    // SAFETY: the kernel restores these registers when the handler returns.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RDI as usize] = saved_sp as i64;
    registers[libc::REG_RSI as usize] = i64::from(status::FAULTED);
    registers[libc::REG_RIP as usize] = entry::leave_address() as i64;
}

#[cfg(target_arch = "aarch64")]
unsafe fn resume_at_leave(context: *mut libc::ucontext_t, saved_sp: usize) {
    // SAFETY: the kernel restores these registers when the handler returns.
    let machine = unsafe { &mut (*context).uc_mcontext };
    machine.regs[0] = saved_sp as u64;
    machine.regs[1] = u64::from(status::FAULTED);
    machine.pc = entry::leave_address() as u64;
}

/// Does what the process would have done without us.
unsafe fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous =
        PREVIOUS.get().map(|previous| if signal == libc::SIGBUS { &previous.bus } else { &previous.segv });
    match previous {
        Some(action) if action.sa_sigaction == libc::SIG_IGN => {}
        Some(action) if action.sa_sigaction != libc::SIG_DFL => {
            // SAFETY: the address is a handler of one of the two forms, which SA_SIGINFO
            // distinguishes.
            unsafe {
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(action.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(action.sa_sigaction);
                    handler(signal);
                }
            }
        }
        // The instruction faults again under the default action, which ends the process with the
        // right signal. SAFETY: `signal` and SIG_DFL are async-signal-safe.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}
