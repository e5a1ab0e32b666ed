//! Event files of TensorBoard: records of TFRecord (length, checksum, data, checksum), each an
//! `Event` message of `tensorflow/core/util/event.proto`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use crc::{CRC_32_ISCSI, Crc};
use prost::Message;

use crate::Point;

/// Larger records hold images, sound or graphs, and are passed over.
const RECORD_MAX: u64 = 1 << 20;
const HEAD: u64 = 12;
const TAIL: u64 = 4;
const CASTAGNOLI: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Scalars of `Value.tensor`; `DT_FLOAT` and `DT_DOUBLE` of `types.proto`.
const FLOAT: i32 = 1;
const DOUBLE: i32 = 2;

#[derive(Message)]
struct Event {
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

#[derive(Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
}

#[derive(Clone, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "4")]
    content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    floats: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    doubles: Vec<f64>,
}

/// What came of one look at a file.
pub(crate) enum Next {
    /// The scalars of a record, and where the next one begins.
    Record(Vec<Point>, u64),
    /// The rest is not written yet.
    Unfinished,
    /// The checksum or the message is wrong, so nothing after it can be found.
    Damaged,
}

/// Reads the record that begins at `offset` of a file with `size` bytes.
pub(crate) fn record(file: &mut File, size: u64, offset: u64, run: &str) -> io::Result<Next> {
    let left = size.saturating_sub(offset);
    if left < HEAD {
        return Ok(Next::Unfinished);
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut head = [0; HEAD as usize];
    file.read_exact(&mut head)?;
    let (length, sum) = head.split_at(8);
    if masked(length) != word(sum) {
        return Ok(Next::Damaged);
    }
    let length = length.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let Some(whole) = length.checked_add(HEAD + TAIL).filter(|whole| offset.checked_add(*whole).is_some())
    else {
        return Ok(Next::Damaged);
    };
    if left < whole {
        return Ok(Next::Unfinished);
    }
    if length > RECORD_MAX {
        return Ok(Next::Record(Vec::new(), offset + whole));
    }
    let mut data = vec![0; (length + TAIL) as usize];
    file.read_exact(&mut data)?;
    let (data, sum) = data.split_at(length as usize);
    match (masked(data) == word(sum)).then(|| Event::decode(data)) {
        Some(Ok(event)) => Ok(Next::Record(event.points(run), offset + whole)),
        _ => Ok(Next::Damaged),
    }
}

impl Event {
    fn points(self, run: &str) -> Vec<Point> {
        let step = u64::try_from(self.step).unwrap_or(0);
        let values = self.summary.map(|summary| summary.values).unwrap_or_default();
        let point = |value: Value| Some(Point::new(run, &value.tag, step, value.scalar()?));
        values.into_iter().filter_map(point).collect()
    }
}

impl Value {
    fn scalar(&self) -> Option<f64> {
        self.simple.map(f64::from).or_else(|| self.tensor.as_ref()?.scalar())
    }
}

impl Tensor {
    fn scalar(&self) -> Option<f64> {
        match (self.kind, &*self.content, &*self.floats, &*self.doubles) {
            (FLOAT, [], [value], _) => Some(f64::from(*value)),
            (DOUBLE, [], _, [value]) => Some(*value),
            (FLOAT, content, ..) => Some(f64::from(f32::from_le_bytes(content.try_into().ok()?))),
            (DOUBLE, content, ..) => Some(f64::from_le_bytes(content.try_into().ok()?)),
            _ => None,
        }
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// The masked checksum of `tensorflow/core/lib/hash/crc32c.h`.
fn masked(data: &[u8]) -> u32 {
    CASTAGNOLI.checksum(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A record as TensorBoard's writers make it.
#[cfg(test)]
pub(crate) fn written(step: i64, tag: &str, value: f32) -> Vec<u8> {
    let value = Value { tag: tag.into(), simple: Some(value), tensor: None };
    let data = Event { step, summary: Some(Summary { values: vec![value] }) }.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length).to_le_bytes(), &data, &masked(&data).to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn scalars_are_read_in_all_their_forms() {
        let tensor = |tensor| Value { tag: "t".into(), simple: None, tensor: Some(tensor) }.scalar();
        let empty = Tensor { kind: FLOAT, content: Vec::new(), floats: Vec::new(), doubles: Vec::new() };
        assert_eq!(tensor(Tensor { floats: vec![0.5], ..empty.clone() }), Some(0.5));
        assert_eq!(tensor(Tensor { content: 0.25f32.to_le_bytes().into(), ..empty.clone() }), Some(0.25));
        let double = Tensor { kind: DOUBLE, content: 2.5f64.to_le_bytes().into(), ..empty.clone() };
        assert_eq!(tensor(double), Some(2.5));
        assert_eq!(tensor(Tensor { floats: vec![1.0, 2.0], ..empty.clone() }), None, "no scalar");
        assert_eq!(tensor(Tensor { kind: 7, content: vec![1], ..empty }), None, "text");
    }

    #[test]
    fn a_record_is_read_when_it_is_whole_and_refused_when_damaged() {
        let mut file = tempfile::tempfile().unwrap();
        let record_of = written(30, "train/loss", 0.5);
        for end in 0..record_of.len() {
            file.set_len(0).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(&record_of[..end]).unwrap();
            assert!(matches!(record(&mut file, end as u64, 0, "r").unwrap(), Next::Unfinished), "{end}");
        }
        for wrong in 0..record_of.len() {
            let mut damaged = record_of.clone();
            damaged[wrong] ^= 1;
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(&damaged).unwrap();
            let read = record(&mut file, damaged.len() as u64, 0, "r").unwrap();
            assert!(matches!(read, Next::Damaged), "byte {wrong}");
        }
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(&record_of).unwrap();
        let Next::Record(points, next) = record(&mut file, record_of.len() as u64, 0, "r").unwrap() else {
            panic!("a whole record")
        };
        assert_eq!((points, next), (vec![Point::new("r", "train/loss", 30, 0.5)], record_of.len() as u64));
    }
}
