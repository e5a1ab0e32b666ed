//! Any payload of one kind of message, which is the program's name: what can be read is written the
//! same way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_wire::control::Control;
use sluice_wire::handshake::{Hello, Welcome};
use sluice_wire::peer::{Answer, Request};
use sluice_wire::{
    Allowance, Command, CommandRefused, Decode, Encode, HostCall, HostWrite, Op, Received, ReplyHead, Sticky, commands,
    decode, live,
};

/// A message has one form, so nothing that is read is lost.
fn same<'a, T: Decode<'a> + Encode>(payload: &'a [u8]) {
    if let Ok(message) = decode::<T>(payload) {
        written(&message, payload);
    }
}

fn written(message: &impl Encode, payload: &[u8]) {
    let mut again = Vec::new();
    message.encode(&mut again);
    assert_eq!(again, payload);
}

/// Any payload of the answer to an operation.
fn answer(op: Op, payload: &[u8]) {
    macro_rules! of_commands {
        ($($name:ident)*) => {
            match op {
                $(<commands::$name as Command>::OP => _ = decode::<<commands::$name as Command>::Reply<'_>>(payload),)*
                _ => {}
            }
        };
    }
    sluice_wire::for_each_command!(of_commands);
}

fuzz_target!(|bytes: &[u8]| match env!("CARGO_BIN_NAME") {
    "hello" => {
        if let Ok(Some((hello, size))) = Hello::from_bytes(bytes) {
            assert_eq!(hello.to_bytes(), bytes[..size]);
        }
    }
    "welcome" => {
        if let Ok(Some(size)) = Welcome::from_bytes(bytes) {
            assert_eq!(Welcome::to_bytes(), bytes[..size]);
        }
    }
    "control" => {
        let Some((number, payload)) = bytes.split_first_chunk() else { return };
        if let Ok(message) = Control::decode(u16::from_le_bytes(*number), payload) {
            written(&message, payload);
        }
    }
    // Of these some fields count only beside others.
    "peer-request" => {
        let request = bytes.first_chunk().map(|bytes| Request::from_bytes(*bytes));
        if let Some(Ok(request)) = request {
            assert_eq!(Request::from_bytes(request.to_bytes()), Ok(request));
        }
    }
    "peer-answer" => {
        let answer = bytes.first_chunk().map(|bytes| Answer::from_bytes(*bytes));
        if let Some(Ok(answer)) = answer {
            assert_eq!(Answer::from_bytes(answer.to_bytes()), Ok(answer));
        }
    }
    "answer" => {
        let Some((op, payload)) = bytes.split_first_chunk() else { return };
        answer(Op(u16::from_le_bytes(*op)), payload);
    }
    // What `LivePush` and the answer to `LiveAwait` carry.
    "live-words" => {
        let mut words = Vec::new();
        if live::told(bytes, |word| words.push(word)).is_ok() {
            let mut again = Vec::new();
            for part in live::tell(&words) {
                live::told(&part, |word| again.push(word)).expect("it was encoded here");
            }
            assert_eq!(again, words);
        }
    }
    "allowance" => same::<Allowance>(bytes),
    "reply" => same::<ReplyHead>(bytes),
    "host-write" => same::<HostWrite<'_>>(bytes),
    "host-call" => same::<HostCall>(bytes),
    "command-refused" => same::<CommandRefused>(bytes),
    "sticky" => same::<Sticky>(bytes),
    "received" => same::<Received>(bytes),
    other => unreachable!("no kind of message is called {other}"),
});
