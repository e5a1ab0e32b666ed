//! Messages for the program's user, for which the driver API has no place: why a kernel was
//! refused, or how it failed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What takes messages, a line each, without a newline.
pub type Messages = Arc<dyn Fn(&str) + Send + Sync>;

/// A message is cut to this number of characters: names of kernels are the program's choice.
const CHARS_MAX: usize = 1000;

static RECEIVER: Mutex<Option<Messages>> = Mutex::new(None);

/// Says where messages go; standard error unless set. A program on another machine cannot see this
/// process's.
pub fn set_messages(receiver: Messages) {
    *RECEIVER.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
}

/// Hands over one message.
pub(crate) fn say(message: fmt::Arguments<'_>) {
    let text: String = message.to_string().chars().take(CHARS_MAX).collect();
    let receiver = RECEIVER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match receiver {
        Some(receiver) => receiver(&text),
        None => eprintln!("sluice: {text}"),
    }
}
