//! What is known about registers and stack at an instruction.
use std::collections::BTreeMap;

/// The actions of a path so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct Passed {
    pub(crate) hash_lookups: u8,
    /// The lookup found a backend.
    pub(crate) hit: bool,
    pub(crate) array_lookups: u8,
    /// A helper read the headers, since they are not in the linear part, or make no sense there.
    pub(crate) loaded: bool,
    /// No IP header could be read, so the packet may be counted.
    pub(crate) unread: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Value {
    Anything,
    Number(i64),
    Context,
    Packet,
    PacketEnd,
    /// A pointer into the frame with this index, at this offset if it is known.
    Stack(usize, Option<i32>),
    Map(usize),
    /// An element of a map, or null.
    Found(usize),
    /// The start of an element.
    Element(usize),
    /// The first field of an element of `nodes`.
    Verdict,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) back_to: usize,
    pub(crate) saved: [Value; 4],
    /// Words of 8 bytes, by offset.
    pub(crate) words: BTreeMap<i32, Value>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) at: usize,
    pub(crate) registers: [Value; 11],
    pub(crate) frames: Vec<Frame>,
    pub(crate) passed: Passed,
}

impl State {
    pub(crate) fn set(&mut self, register: u8, value: Value) {
        self.registers[usize::from(register)] = value;
    }

    pub(crate) fn get(&self, register: u8) -> Value {
        self.registers[usize::from(register)]
    }

    /// Notes a write of `size` bytes to the stack. Without `at` the place of the write is unknown.
    pub(crate) fn write_stack(&mut self, frame: usize, at: Option<i32>, size: i32, value: Value) {
        let words = &mut self.frames[frame].words;
        let Some(at) = at else { return words.clear() };
        words.retain(|word, _| word + 8 <= at || at + size <= *word);
        if size == 8 && value != Value::Anything {
            words.insert(at, value);
        }
    }

    fn values(&mut self) -> impl Iterator<Item = &mut Value> {
        let words = self.frames.iter_mut().flat_map(|frame| frame.words.values_mut().chain(&mut frame.saved));
        self.registers.iter_mut().chain(words)
    }

    /// Replaces `from`, which turned out to be `to`, wherever it is stored.
    pub(crate) fn learn(&mut self, from: Value, to: Value) {
        self.values().filter(|value| **value == from).for_each(|value| *value = to);
    }

    /// Forgets all values except for pointers to the packet, the context and the stack, which makes fewer states.
    pub(crate) fn keep_pointers(&mut self) {
        let is_pointer = |value: &Value| matches!(value, Value::Packet | Value::Context | Value::Stack(..));
        self.values().filter(|value| !is_pointer(value)).for_each(|value| *value = Value::Anything);
        for frame in &mut self.frames {
            frame.words.retain(|_, value| *value != Value::Anything);
        }
        self.passed = Passed::default();
    }
}

pub(crate) fn size(code: u8) -> i32 {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

/// The result of an instruction. Sums of numbers are not calculated, since a loop that counts would have a state for each turn.
pub(crate) fn calculated(code: u8, value: Value, operand: Value) -> Value {
    let whole = code & 7 == 7;
    match (code & 0xf0, value, operand) {
        (0xb0, _, Value::Number(number)) => {
            Value::Number(if whole { number } else { i64::from(number as u32) })
        }
        (0xb0, _, moved) if whole || moved == Value::Verdict => moved,
        (0x00, Value::Packet, _) | (0x00, _, Value::Packet) if whole => Value::Packet,
        (0x10, Value::Packet, Value::Number(_)) if whole => Value::Packet,
        (0x00, Value::Stack(frame, at), Value::Number(number)) if whole => {
            Value::Stack(frame, at.and_then(|at| at.checked_add(i32::try_from(number).ok()?)))
        }
        (0x00, Value::Stack(frame, _), _) | (0x00, _, Value::Stack(frame, _)) if whole => {
            Value::Stack(frame, None)
        }
        _ => Value::Anything,
    }
}
