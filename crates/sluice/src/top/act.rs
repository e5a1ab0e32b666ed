//! What a key does to the selected session, and the question that comes before.

use ratatui::crossterm::event::KeyCode;

use super::state::Session;
use crate::quantity::{Memory, Share};

/// Characters of a new size.
const SIZE_MAX: usize = 24;

/// What is done to a session, or with a server to its lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    End,
    Suspend,
    Resume,
    Resize { share_ppm: Option<u32>, memory: Option<u64> },
}

/// A question that a person has to answer before a session is changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    pub(super) session: Session,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// Whether it is to be done.
    Confirm(Act),
    /// The new size, as far as it is typed, and what is wrong with it.
    Size { typed: String, problem: Option<String> },
}

/// What an answer leads to.
#[derive(Debug)]
pub(super) enum Answered {
    Do(Box<Session>, Act),
    Ask(Box<Question>),
    Nothing,
}

impl Question {
    pub(super) fn size(session: Session) -> Question {
        Question { session, kind: Kind::Size { typed: String::new(), problem: None } }
    }

    pub(super) fn confirm(session: Session, act: Act) -> Question {
        Question { session, kind: Kind::Confirm(act) }
    }

    pub(super) fn key(self, code: KeyCode) -> Answered {
        let Question { session, kind } = self;
        match (kind, code) {
            (Kind::Confirm(act), KeyCode::Char('y' | 'Y')) => Answered::Do(Box::new(session), act),
            (Kind::Confirm(_), _) | (Kind::Size { .. }, KeyCode::Esc) => Answered::Nothing,
            (Kind::Size { typed, .. }, KeyCode::Enter) => match size(&typed) {
                Ok(act) => Answered::Do(Box::new(session), act),
                Err(problem) => {
                    let kind = Kind::Size { typed, problem: Some(problem) };
                    Answered::Ask(Box::new(Question { session, kind }))
                }
            },
            (Kind::Size { mut typed, .. }, code) => {
                match code {
                    KeyCode::Backspace => drop(typed.pop()),
                    KeyCode::Char(c) if typed.len() < SIZE_MAX && c.is_ascii_graphic() | (c == ' ') => {
                        typed.push(c)
                    }
                    _ => {}
                }
                Answered::Ask(Box::new(Question { session, kind: Kind::Size { typed, problem: None } }))
            }
        }
    }
}

/// Reads a new size, such as `50%`, `16GiB`, or both.
fn size(typed: &str) -> Result<Act, String> {
    let (mut share_ppm, mut memory) = (None, None);
    for word in typed.split_whitespace() {
        let is_memory = word.ends_with(|last: char| last.is_ascii_alphabetic());
        let is_second = if is_memory {
            memory.replace(word.parse::<Memory>()?.bytes()).is_some()
        } else {
            share_ppm.replace(word.parse::<Share>()?.ppm()).is_some()
        };
        if is_second {
            return Err(format!("{word:?} is named twice"));
        }
    }
    match (share_ppm, memory) {
        (None, None) => Err("a share, such as 50%, an amount of memory, such as 16GiB, or both".into()),
        _ => Ok(Act::Resize { share_ppm, memory }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Answered {
        let mut question = Question::size(Session::default());
        for c in text.chars() {
            let Answered::Ask(next) = question.key(KeyCode::Char(c)) else { panic!("{c:?} answered it") };
            question = *next;
        }
        question.key(KeyCode::Enter)
    }

    #[test]
    fn a_size_is_a_share_or_memory_or_both() {
        let resize = |text: &str| match typed(text) {
            Answered::Do(_, act) => act,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(resize("50%"), Act::Resize { share_ppm: Some(500_000), memory: None });
        assert_eq!(resize("16GiB"), Act::Resize { share_ppm: None, memory: Some(16 << 30) });
        assert_eq!(resize(" 0.25 8g"), Act::Resize { share_ppm: Some(250_000), memory: Some(8 << 30) });
    }

    #[test]
    fn a_wrong_size_is_asked_for_again_with_the_reason() {
        for text in ["", "2", "x", "50% 60%", "8GiB 9GiB", "16"] {
            let Answered::Ask(question) = typed(text) else { panic!("{text:?} was taken") };
            let Kind::Size { problem, .. } = question.kind else { panic!("{text:?}") };
            assert!(problem.is_some_and(|why| !why.is_empty()), "{text:?}");
        }
        assert!(matches!(Question::size(Session::default()).key(KeyCode::Esc), Answered::Nothing));
    }
}
