//! Work that is taken several pieces at a time. One test runs at a time in a process of their own:
//! another's queue would keep it from that.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use sluice_cuda::*;

mod common;
use common::*;

static ALONE: Mutex<()> = Mutex::new(());

/// What the word held when the stream came by.
static SEEN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

unsafe extern "C" fn see(word: *mut c_void) {
    // SAFETY: a word of pinned memory that outlives the stream's work.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(word.load(SeqCst));
}

#[test]
fn pieces_long_and_short_keep_their_order_and_are_all_counted() {
    const ROUNDS: u32 = 40;
    const LONG: usize = 1 << 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _context = Context::new(0);
    let s = stream(CU_STREAM_NON_BLOCKING);
    let (mut word, event) = (null_mut(), event());
    ok!(cuMemHostAlloc(&mut word, 8, 0));
    let held = word as u64 + 4;
    let large = allocate(LONG);
    // Nothing begins before all of it is queued.
    ok!(cuStreamWaitValue32_v2(s, held, 1, 1));
    for round in 1..=ROUNDS {
        for step in 1..=20 {
            ok!(cuMemsetD32Async(word as u64, round * 100 + step, 1, s));
        }
        // Longer than pieces are taken together for: what is left goes back.
        ok!(cuMemsetD8Async(large, round as u8, LONG, s));
        ok!(cuMemsetD32Async(word as u64, round, 1, s));
        ok!(cuEventRecord(event, s));
        ok!(cuMemsetD8Async(large, 0, 1, s));
        ok!(cuLaunchHostFunc(s, Some(see), word));
    }
    // SAFETY: the second word of the pinned memory.
    unsafe { &*(held as *const AtomicU32) }.store(1, SeqCst);
    ok!(cuEventSynchronize(event));
    ok!(cuStreamSynchronize(s));
    let expected: Vec<u32> = (1..=ROUNDS).collect();
    assert_eq!(*SEEN.lock().unwrap_or_else(PoisonError::into_inner), expected);
    let mut bytes = vec![0_u8; LONG];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), large, LONG));
    assert!(bytes[0] == 0 && bytes[1..].iter().all(|&byte| byte == ROUNDS as u8));
    assert!(sluice_softgpu::has_room(0), "everything that was queued has been counted out again");
}

#[test]
fn a_value_that_was_right_before_the_work_in_front_changed_it_is_waited_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _context = Context::new(0);
    let s = stream(CU_STREAM_NON_BLOCKING);
    let mut words = null_mut();
    ok!(cuMemHostAlloc(&mut words, 12, 0));
    let word = |index: usize| {
        let address = words as u64 + 4 * index as u64;
        // SAFETY: three words of pinned memory, which lives as long as the process.
        (address, unsafe { &*(address as *const AtomicU32) })
    };
    let ((held, open), (value, seen), (mark, reached)) = (word(0), word(1), word(2));
    seen.store(1, SeqCst);
    ok!(cuStreamWaitValue32_v2(s, held, 1, 1));
    ok!(cuMemsetD32Async(mark, 1, 1, s));
    ok!(cuStreamWriteValue32_v2(s, value, 0, 0));
    ok!(cuStreamWaitValue32_v2(s, value, 1, 1));
    ok!(cuMemsetD32Async(mark, 2, 1, s));
    open.store(1, SeqCst);
    while seen.load(SeqCst) == 1 {
        std::thread::yield_now();
    }
    // Work of another stream comes to its end meanwhile: the device is not waiting for anything
    // else.
    let other = stream(CU_STREAM_NON_BLOCKING);
    ok!(cuMemsetD8Async(allocate(1 << 20), 1, 1 << 20, other));
    ok!(cuStreamSynchronize(other));
    assert_eq!(reached.load(SeqCst), 1);
    seen.store(1, SeqCst);
    ok!(cuStreamSynchronize(s));
    assert_eq!(reached.load(SeqCst), 2);
}
