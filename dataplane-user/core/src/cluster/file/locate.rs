//! Where a field stands in a file's text. Only used for a field that is refused, since the text is read once more.

use std::fmt;

use serde::de::{Deserialize as _, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::raw::options;

/// Where the field of this path (as in `nodes[3].addresses[1]`) stands; where there is none, the nearest field of which it would be part.
pub(super) fn locate(text: &str, path: &str) -> Option<Location> {
    let mut path = segments(path);
    loop {
        let found = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |reader| {
            Seek(&path).deserialize(reader)
        });
        match found {
            Ok(Some(location)) => return Some(location),
            // Not there.
            _ => path.pop()?,
        };
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Segment<'a> {
    Key(&'a str),
    Index(usize),
}

fn segments(path: &str) -> Vec<Segment<'_>> {
    let parts = path.split(['.', '[']).filter(|part| !part.is_empty());
    let segment = |part| match str::strip_suffix(part, ']').and_then(|index| index.parse().ok()) {
        Some(index) => Segment::Index(index),
        None => Segment::Key(part),
    };
    parts.map(segment).collect()
}

/// Goes to the value at the end of these segments and returns where it stands; `None` where there is none.
struct Seek<'a>(&'a [Segment<'a>]);

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Option<Location>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        match self.0.split_first() {
            None => Spanned::<IgnoredAny>::deserialize(reader).map(|value| Some(value.referenced)),
            Some((next, rest)) => reader.deserialize_any(Step { next, rest }),
        }
    }
}

struct Step<'a> {
    next: &'a Segment<'a>,
    rest: &'a [Segment<'a>],
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<Location>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if *self.next == Segment::Key(&key) {
                found = map.next_value_seed(Seek(self.rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        for at in 0.. {
            if *self.next == Segment::Index(at) {
                match list.next_element_seed(Seek(self.rest))? {
                    Some(location) => found = location,
                    None => break,
                }
            } else if list.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_path_or_else_what_it_would_be_part_of() {
        let text = "nodes:\n- name: a\n  address: 10.0.0.1\n- {name: b, ports: {http: 80}}\n";
        let at = |path: &str| locate(text, path).map(|place| (place.line(), place.column()));
        assert_eq!(at("nodes[1].ports.http"), Some((4, 27)));
        assert_eq!(at("nodes[0].address"), Some((3, 12)));
        assert_eq!(at("nodes[0].addresses[1]"), Some((2, 3)));
        assert_eq!((at("nodes[0].name.x"), at("nodes[7].name")), (Some((2, 9)), Some((2, 3))));
        assert_eq!((at("flags"), at("")), (Some((1, 1)), Some((1, 1))));
        assert_eq!(locate("nodes: [\n", "nodes"), None);
    }
}
