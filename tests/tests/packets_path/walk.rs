//! Follows a program's instructions along every path. The walk knows what kind of value each register and each word of the stack holds.
//!
//! It knows the part of the instruction set that the object uses (RFC 9669). An unknown value may be anything, so the walk may follow a path that no packet
//! takes, but it leaves out no path that a packet takes.
use std::collections::{BTreeMap, BTreeSet, HashSet};

use anyhow::{Context as _, Result, bail, ensure};
use aya_obj::generated::bpf_insn;

use super::state::{Frame, Passed, State, Value, calculated, size};

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const LOOK_UP: i32 = 1;
const SKB_LOAD_BYTES: i32 = 26;
const STATES_AT_MOST: usize = 2_000_000;

/// A map of the object.
pub(crate) struct Map {
    pub(crate) name: String,
    /// `BPF_MAP_TYPE_*`.
    pub(crate) kind: u32,
}

/// The type of a program, which decides the first fields of its context.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hooked {
    Tc,
    Xdp,
}

pub(crate) struct Program {
    pub(crate) code: Vec<bpf_insn>,
    pub(crate) maps: Vec<Map>,
    pub(crate) hooked: Hooked,
}

#[derive(Default)]
pub(crate) struct Found {
    /// The actions of all paths that let the packet pass.
    pub(crate) passed: BTreeSet<Passed>,
    /// The number of paths that came to a verdict.
    pub(crate) verdicts: u64,
    pub(crate) states: usize,
}

/// The subject of a walk.
enum Aim {
    /// The rules of the passing path, which must return this value.
    Passing(u32),
    /// All writes through packet pointers.
    Writes(BTreeSet<usize>),
}

struct Walk<'a> {
    program: &'a Program,
    aim: Aim,
    found: Found,
    to_do: Vec<State>,
}

/// Follows all paths up to a verdict, and checks them by the rules.
pub(crate) fn walk(program: &Program, pass: u32) -> Result<Found> {
    Ok(go(program, Aim::Passing(pass))?.found)
}

/// The instructions that write through a packet pointer, whether there is a verdict or not.
pub(crate) fn packet_writes(program: &Program) -> Result<BTreeSet<usize>> {
    match go(program, Aim::Writes(BTreeSet::new()))?.aim {
        Aim::Writes(writes) => Ok(writes),
        Aim::Passing(_) => bail!("another aim than that of the walk"),
    }
}

fn go(program: &Program, aim: Aim) -> Result<Walk<'_>> {
    let mut registers = [Value::Anything; 11];
    registers[1] = Value::Context;
    registers[10] = Value::Stack(0, Some(0));
    let frame = Frame { back_to: usize::MAX, saved: [Value::Anything; 4], words: BTreeMap::new() };
    let start = State { at: 0, registers, frames: vec![frame], passed: Passed::default() };
    let mut walk = Walk { program, aim, found: Found::default(), to_do: vec![start] };
    let mut been = HashSet::new();
    while let Some(mut state) = walk.to_do.pop() {
        if matches!(walk.aim, Aim::Writes(_)) {
            state.keep_pointers();
        }
        let at = state.at;
        if been.insert(state.clone()) {
            ensure!(been.len() < STATES_AT_MOST, "more than {STATES_AT_MOST} states");
            walk.step(state).with_context(|| format!("instruction {at}"))?;
        }
    }
    walk.found.states = been.len();
    Ok(walk)
}

impl Walk<'_> {
    fn step(&mut self, mut state: State) -> Result<()> {
        let instruction = *self.program.code.get(state.at).context("behind the end")?;
        let dst = instruction.dst_reg();
        let src = instruction.src_reg();
        let code = instruction.code;
        match code & 7 {
            // `ld_imm64` takes the places of two instructions.
            0 if code == 0x18 => {
                let upper = self.program.code.get(state.at + 1).context("behind the end")?.imm;
                state.set(
                    dst,
                    match src {
                        0 => Value::Number(i64::from(upper) << 32 | i64::from(instruction.imm as u32)),
                        1 => Value::Map(usize::try_from(instruction.imm)?),
                        _ => Value::Anything,
                    },
                );
                state.at += 1;
            }
            1 => {
                let value = self.load(&state, state.get(src), instruction.off, size(code));
                state.set(dst, value);
            }
            2 | 3 => {
                // Atomic operations (mode 0xc0) write too, and the written value is unknown.
                let value =
                    if code & 7 == 3 { state.get(src) } else { Value::Number(instruction.imm.into()) };
                let value = if code & 0xe0 == 0xc0 { Value::Anything } else { value };
                self.store(&mut state, dst, instruction.off, size(code), value)?;
            }
            4 | 7 => {
                let operand =
                    if code & 8 == 0 { Value::Number(instruction.imm.into()) } else { state.get(src) };
                let value = calculated(code, state.get(dst), operand);
                state.set(dst, value);
            }
            5 | 6 => return self.jump(state, &instruction),
            _ => bail!("unknown code {code:#x}"),
        }
        state.at += 1;
        self.to_do.push(state);
        Ok(())
    }

    fn load(&self, state: &State, from: Value, offset: i16, size: i32) -> Value {
        let (data, end) = if self.program.hooked == Hooked::Xdp { (0, 4) } else { (76, 80) };
        match from {
            Value::Context if offset == data => Value::Packet,
            Value::Context if offset == end => Value::PacketEnd,
            Value::Stack(frame, Some(at)) if size == 8 => {
                let word = state.frames[frame].words.get(&(at + i32::from(offset)));
                word.copied().unwrap_or(Value::Anything)
            }
            Value::Element(map) if self.named(map) == "nodes" && offset == 0 && size == 4 => Value::Verdict,
            _ => Value::Anything,
        }
    }

    fn store(&mut self, state: &mut State, base: u8, offset: i16, size: i32, value: Value) -> Result<()> {
        let base = state.get(base);
        if let Value::Stack(frame, at) = base {
            state.write_stack(frame, at.map(|at| at + i32::from(offset)), size, value);
            return Ok(());
        }
        match &mut self.aim {
            Aim::Writes(writes) => {
                if base == Value::Packet {
                    writes.insert(state.at);
                }
            }
            Aim::Passing(_) => {
                let counter =
                    matches!(base, Value::Element(map) if self.program.maps[map].name == "counters");
                ensure!(counter && state.passed.unread, "a write before a verdict: {}", self.told(base));
            }
        }
        Ok(())
    }

    fn jump(&mut self, mut state: State, instruction: &bpf_insn) -> Result<()> {
        let code = instruction.code;
        let offset = i64::from(instruction.off);
        let next = state.at + 1;
        let target = |by: i64| usize::try_from(next as i64 + by);
        match code & 0xf0 {
            0x00 => state.at = target(if code & 7 == 6 { instruction.imm.into() } else { offset })?,
            0x80 => return self.call(state, instruction),
            0x90 => return self.exit(state),
            operation => {
                let value = state.get(instruction.dst_reg());
                let by = if code & 8 == 0 {
                    Value::Number(instruction.imm.into())
                } else {
                    state.get(instruction.src_reg())
                };
                for equal in [true, false] {
                    let mut state = state.clone();
                    // Other comparisons say nothing about values that the walk knows.
                    let jumps = match operation {
                        0x10 => equal,
                        0x50 => !equal,
                        _ => {
                            state.at = if equal { target(offset)? } else { next };
                            self.to_do.push(state);
                            continue;
                        }
                    };
                    if self.learnt(&mut state, value, by, equal) {
                        state.at = if jumps { target(offset)? } else { next };
                        self.to_do.push(state);
                    }
                }
                return Ok(());
            }
        }
        self.to_do.push(state);
        Ok(())
    }

    /// Notes that `value` is equal to `by`, or is not. False if that is impossible, or if the path has come to its verdict.
    fn learnt(&mut self, state: &mut State, value: Value, by: Value, equal: bool) -> bool {
        match (value, by) {
            (Value::Number(a), Value::Number(b)) => (a as u32 == b as u32) == equal,
            (Value::Found(map), Value::Number(0)) => {
                state.learn(value, if equal { Value::Number(0) } else { Value::Element(map) });
                state.passed.hit |= !equal && self.named(map) == "backends";
                true
            }
            (Value::Verdict, Value::Number(0)) if !equal => {
                self.found.verdicts += 1;
                state.learn(value, Value::Anything);
                matches!(self.aim, Aim::Writes(_))
            }
            _ => true,
        }
    }

    fn call(&mut self, mut state: State, instruction: &bpf_insn) -> Result<()> {
        match instruction.src_reg() {
            0 => {
                self.helper(&mut state, instruction.imm)?;
                state.at += 1;
            }
            1 => {
                let depth = state.frames.len();
                ensure!(depth < 16, "more than 16 calls in a chain");
                let saved = [6, 7, 8, 9].map(|register| state.get(register));
                let back_to = state.at + 1;
                state.frames.push(Frame { back_to, saved, words: BTreeMap::new() });
                (6..10).for_each(|register| state.set(register, Value::Anything));
                state.set(10, Value::Stack(depth, Some(0)));
                state.at = usize::try_from(back_to as i64 + i64::from(instruction.imm))?;
            }
            other => bail!("a call of an unknown kind ({other})"),
        }
        self.to_do.push(state);
        Ok(())
    }

    fn helper(&mut self, state: &mut State, number: i32) -> Result<()> {
        let mut result = Value::Anything;
        match (number, state.get(1)) {
            (LOOK_UP, Value::Map(map)) => {
                if matches!(self.aim, Aim::Passing(_)) {
                    self.looked_up(&mut state.passed, map)?;
                }
                result = Value::Found(map);
            }
            _ if matches!(self.aim, Aim::Writes(_)) => {}
            (SKB_LOAD_BYTES, _) => {
                ensure!(state.passed.hash_lookups == 0, "the packet is read by a helper after a lookup");
                state.passed.loaded = true;
            }
            (LOOK_UP, other) => bail!("a lookup in {}", self.told(other)),
            _ => bail!("helper {number} is called before a verdict"),
        }
        // The helper may write to each place of the stack to which an argument points.
        for register in 1..=5 {
            if let Value::Stack(frame, _) = state.get(register)
                && number != LOOK_UP
            {
                state.write_stack(frame, None, 0, Value::Anything);
            }
            state.set(register, Value::Anything);
        }
        state.set(0, result);
        Ok(())
    }

    fn looked_up(&self, passed: &mut Passed, map: usize) -> Result<()> {
        let map = &self.program.maps[map];
        match map.name.as_str() {
            "backends" if !passed.unread && map.kind == HASH => passed.hash_lookups += 1,
            "nodes" if passed.hit && map.kind == ARRAY => passed.array_lookups += 1,
            "counters" | "devices" if passed.hash_lookups == 0 => passed.unread = true,
            name => bail!("a lookup in `{name}` before a verdict, after {passed:?}"),
        }
        let lookups = (passed.hash_lookups, passed.array_lookups);
        ensure!(lookups.0 <= 1 && lookups.1 <= 1, "one more lookup in `{}` before a verdict", map.name);
        Ok(())
    }

    fn exit(&mut self, mut state: State) -> Result<()> {
        let frame = state.frames.pop().context("a return without a call")?;
        if state.frames.is_empty() {
            if let Aim::Passing(pass) = self.aim {
                let returned = state.get(0);
                let passes = matches!(returned, Value::Number(number) if number as u32 == pass);
                ensure!(
                    passes,
                    "without a verdict {} is returned, after {:?}",
                    self.told(returned),
                    state.passed
                );
                self.found.passed.insert(state.passed);
            }
            return Ok(());
        }
        (1..6).for_each(|register| state.set(register, Value::Anything));
        for (register, value) in (6..10).zip(frame.saved) {
            state.set(register, value);
        }
        state.set(10, Value::Stack(state.frames.len() - 1, Some(0)));
        state.at = frame.back_to;
        self.to_do.push(state);
        Ok(())
    }

    fn named(&self, map: usize) -> &str {
        &self.program.maps[map].name
    }

    fn told(&self, value: Value) -> String {
        match value {
            Value::Map(map) | Value::Found(map) | Value::Element(map) => format!("`{}`", self.named(map)),
            other => format!("{other:?}"),
        }
    }
}
