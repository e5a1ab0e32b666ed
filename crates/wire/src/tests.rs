//! Every message comes back as it went, and no bytes from a peer do harm.

use std::fmt::Debug;

use proptest::{collection::vec, prelude::*};

use crate::{
    codec::{Encode, decode},
    command::*,
    commands,
    control::*,
    frame::FrameDecoder,
    handshake::{Hello, Welcome},
    sample::{Sample, Source},
};

/// Encodes a sample of the type, decodes it, and tries every shorter payload.
macro_rules! round_trips {
    ($bytes:expr, $($of:ty),*) => {$({
        let message = <$of>::sample(&mut Source::new($bytes));
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        check(&message, decode::<$of>(&encoded).as_ref(), &encoded);
        for cut in 0..encoded.len() {
            assert!(decode::<$of>(&encoded[..cut]).is_err(), "{} is complete after {cut} bytes", stringify!($of));
        }
        // Whatever decodes from random bytes is what those bytes say.
        if let Ok(message) = decode::<$of>($bytes) {
            let mut again = Vec::new();
            message.encode(&mut again);
            assert_eq!(&again[..], $bytes, "{}", stringify!($of));
        }
    })*};
}

fn check<T: PartialEq + Debug, E: Debug>(sent: &T, received: Result<&T, E>, encoded: &[u8]) {
    match received {
        Ok(received) => assert_eq!(sent, received),
        Err(error) => panic!("{sent:?} became {encoded:?}, which is refused: {error:?}"),
    }
}

macro_rules! commands_round_trip {
    ($($name:ident)*) => {
        fn commands_round_trip(bytes: &[u8]) {
            $(round_trips!(bytes, commands::$name);)*
        }
    };
}

crate::for_each_command!(commands_round_trip);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_command_round_trips(bytes in vec(any::<u8>(), 0..400)) {
        commands_round_trip(&bytes);
    }

    #[test]
    fn every_answer_round_trips(bytes in vec(any::<u8>(), 0..400)) {
        round_trips!(&bytes, ReplyHead, HostWrite, HostCall, Sticky, CommandRefused, Received);
        round_trips!(
            &bytes,
            commands::cuModuleGetFunctionReply, commands::cuModuleGetGlobal_v2Reply, commands::cuMemcpyDtoH_v2Reply,
            commands::cuEventElapsedTimeReply, commands::cuMemGetInfo_v2Reply, commands::ImagesQueryReply
        );
    }

    #[test]
    fn every_control_message_round_trips(bytes in vec(any::<u8>(), 0..2000)) {
        round_trips!(
            &bytes,
            LeaseRequest, LeaseGranted, LeaseRefused, StatusRequest, Status, DevicesRequest, Devices, SessionOpen,
            SessionOpened, SessionRefused, Refused, SessionResumed, LeaseResume, LeaseResumed, LeaseEnd, ProcessWatch,
            ProcessEnded, Migrate, Migrated, MoveOffer, MoveAccepted, MovePiece, MoveArrived, MoveDecided, LeaseMoved,
            SessionMoved, MovePlanned, Checkpoint, CheckpointBegun, CheckpointDecided, Checkpointed, LeaseStored,
            LeaseQuestion, LeaseHere, LeaseRestored
        );
    }

    #[test]
    fn hostile_bytes_are_refused_or_make_sense(bytes in vec(any::<u8>(), 0..300), op in any::<u16>()) {
        let _ = Op(op).name();
        let _ = Control::decode(op % 56, &bytes);
        let _ = Hello::from_bytes(&bytes);
        let _ = Welcome::from_bytes(&bytes);
        let mut decoder = FrameDecoder::new();
        decoder.push(&bytes);
        while let Ok(Some(frame)) = decoder.next_frame() {
            prop_assert!(frame.payload.len() < bytes.len());
        }
    }
}

#[test]
fn operations_have_names() {
    assert_eq!(<commands::cuLaunchKernel as Command>::OP.name(), "cuLaunchKernel");
    assert_eq!(<commands::MemoryCommit as Command>::OP.name(), "MemoryCommit");
    assert_eq!(Op(0x7fff).target(), None);
    assert_eq!(Op(0xffff).target(), None);
}
