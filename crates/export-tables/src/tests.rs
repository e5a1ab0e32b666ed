//! The tables as their callers see them: through raw words.

use super::*;

struct OneDevice;

thread_local! {
    /// Slots of this thread that the driver has run.
    static ENTERED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

const CONTEXT: CUcontext = CUcontext(0x1000);

impl Driver for OneDevice {
    fn enter(&self, slot: &mut dyn FnMut() -> CUresult) -> CUresult {
        ENTERED.set(ENTERED.get() + 1);
        slot()
    }
    fn current_context(&self) -> Result<CUcontext, CUresult> {
        Ok(CONTEXT)
    }
    fn context_number(&self, ctx: CUcontext) -> Result<u64, CUresult> {
        Ok(ctx.0 as u64 / 16)
    }
    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult> {
        if device == 0 { Ok(CONTEXT) } else { Err(CUresult::INVALID_DEVICE) }
    }
    fn driver_version(&self) -> u32 {
        13000
    }
    fn devices(&self) -> Result<Vec<DeviceIdentity>, CUresult> {
        Ok(vec![DeviceIdentity { uuid: CUuuid { bytes: [1; 16] }, pci_domain: 0, pci_bus: 1, pci_device: 0 }])
    }
    unsafe fn load_module(&self, _: *const c_void) -> Result<CUmodule, CUresult> {
        Err(CUresult::INVALID_IMAGE)
    }
    fn module_functions(&self, _: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        Ok(Vec::new())
    }
}

/// The word in a slot of the table that `uuid` names.
fn slot(uuid: [u8; 16], index: usize) -> usize {
    let uuid = CUuuid { bytes: uuid };
    let table = table(&uuid, &OneDevice).expect("the table is served");
    // SAFETY: every table is an array of words longer than the indices used here.
    unsafe { *table.cast::<usize>().add(index) }
}

#[test]
fn tables_begin_with_their_size_in_bytes() {
    for (uuid, _) in TABLES.iter().filter(|(uuid, _)| *uuid != context_local_storage::UUID) {
        let size = slot(*uuid, 0);
        assert!(size.is_multiple_of(8) && (24..=127 * 8).contains(&size), "{uuid:x?}: {size}");
    }
}

#[test]
fn unknown_table_is_not_found() {
    assert!(table(&CUuuid { bytes: [0; 16] }, &OneDevice).is_none());
}

#[test]
fn stored_values_end_with_their_context() {
    static DESTROYED: std::sync::Mutex<Vec<(usize, usize)>> = std::sync::Mutex::new(Vec::new());
    extern "C" fn destroyed(_: CUcontext, key: usize, word: usize) {
        DESTROYED.lock().unwrap().push((key, word));
    }
    type Put =
        extern "C" fn(CUcontext, usize, usize, Option<extern "C" fn(CUcontext, usize, usize)>) -> CUresult;
    type Get = unsafe extern "C" fn(*mut usize, CUcontext, usize) -> CUresult;
    // SAFETY: slots 0 and 2 of this table hold functions of these types.
    let (put, get) = unsafe {
        let uuid = context_local_storage::UUID;
        (std::mem::transmute::<usize, Put>(slot(uuid, 0)), std::mem::transmute::<usize, Get>(slot(uuid, 2)))
    };
    let mut word = 0;
    assert_eq!(put(CUcontext::NULL, 5, 77, Some(destroyed)), CUresult::SUCCESS);
    // SAFETY: `word` is a place for the value.
    unsafe {
        assert_eq!(get(&mut word, CONTEXT, 5), CUresult::SUCCESS);
        assert_eq!(get(&mut word, CONTEXT, 6), CUresult::INVALID_HANDLE);
        context_destroyed(CONTEXT);
        assert_eq!(get(&mut word, CONTEXT, 5), CUresult::INVALID_HANDLE);
    }
    assert_eq!(word, 77);
    assert_eq!(*DESTROYED.lock().unwrap(), [(5, 77)]);
}

#[test]
fn third_integrity_answer_depends_on_the_time() {
    type Check = unsafe extern "C" fn(u32, u64, *mut [u64; 2]) -> CUresult;
    // SAFETY: slot 1 of this table holds a function of this type.
    let check = unsafe { std::mem::transmute::<usize, Check>(slot(integrity_check::UUID, 1)) };
    let answer = |version, seconds| {
        let mut answer = [0; 2];
        // SAFETY: `answer` is a place for two words.
        assert_eq!(unsafe { check(version, seconds, &mut answer) }, CUresult::SUCCESS);
        answer
    };
    assert_eq!(answer(13000, 1), answer(13000, 2));
    assert_ne!(answer(13000, 1), answer(13001, 1));
    assert_ne!(answer(13002, 1), answer(13002, 2));
}

#[test]
fn the_driver_runs_the_slots_that_use_a_lock_or_itself() {
    type Put = extern "C" fn(CUcontext, usize, usize, usize) -> CUresult;
    type Delete = extern "C" fn(CUcontext, usize) -> CUresult;
    type Get = unsafe extern "C" fn(*mut usize, CUcontext, usize) -> CUresult;
    type Current = unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult;
    let uuid = context_local_storage::UUID;
    // SAFETY: these slots hold functions of these types.
    let (put, delete, get, primary) = unsafe {
        (
            std::mem::transmute::<usize, Put>(slot(uuid, 0)),
            std::mem::transmute::<usize, Delete>(slot(uuid, 1)),
            std::mem::transmute::<usize, Get>(slot(uuid, 2)),
            std::mem::transmute::<usize, Current>(slot(cudart_interface::UUID, 2)),
        )
    };
    let (mut word, mut context) = (0, CUcontext::NULL);
    assert!(put(CONTEXT, 0x77, 5, 0).is_success());
    // SAFETY: places for a word and a context.
    unsafe {
        assert!(get(&mut word, CONTEXT, 0x77).is_success());
        assert!(primary(&mut context, 0).is_success());
    }
    assert!(delete(CONTEXT, 0x77).is_success());
    assert_eq!((word, context, ENTERED.get()), (5, CONTEXT, 4));
}
