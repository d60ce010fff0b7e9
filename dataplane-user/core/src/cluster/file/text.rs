use super::{
    super::{
        build::{Builder, Change, Rules},
        view::{ClusterView, SourceName},
    },
    error::Problem,
    locate::locate,
    raw::{RawFile, options},
    read::{Reader, Refused},
};

/// The name of this source.
pub const NAME: SourceName = SourceName::new("the cluster file", "cluster-file");

/// Reads a cluster file's text, YAML or JSON. Either all of it is right, or nothing is taken.
///
/// # Errors
/// The first thing that is wrong, with its field, line and column where they are known.
pub fn parse(text: &str, allow_empty: bool) -> Result<ClusterView, Problem> {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.is_empty() {
        return Err(Problem::Empty);
    }
    // A block-style file that lost its end is often still valid YAML. JSON closes itself and may come without the line
    // feed.
    if !text.ends_with('\n') && !(start.starts_with('{') && text.ends_with('}')) {
        return Err(Problem::Truncated);
    }
    let raw: RawFile = serde_saphyr::from_str_with_options(text, options()).map_err(|_| unreadable(text))?;
    let nodes = raw.nodes.ok_or(Problem::NoList)?;
    if nodes.is_empty() && !allow_empty {
        return Err(Problem::NoNodes);
    }
    // A file that ends here may have lost the rest.
    let services = raw.services.map(|services| services.ok_or(Problem::NoServices)).transpose()?;
    let refused = |refused: Refused| invalid(text, &refused.field, &refused.message);
    let mut reader = Reader::default();
    let nodes = nodes.into_iter().enumerate().map(|(position, node)| reader.node(position, node));
    let nodes: Vec<_> = nodes.collect::<Result<_, _>>().map_err(refused)?;
    let services = services
        .map(|services| {
            let services = services.into_iter().enumerate();
            let services = services.map(|(position, service)| reader.service(position, service));
            services.collect::<Result<Vec<_>, _>>()
        })
        .transpose()
        .map_err(refused)?;
    let mut builder = Builder::new(Rules::Strict);
    let mut take = |change| match builder.apply(change).first() {
        None => Ok(()),
        Some(conflict) => Err(invalid(text, &reader.field(conflict), &conflict.message)),
    };
    take(Change::Nodes(nodes))?;
    if let Some(services) = services {
        let (services, slices) = services.into_iter().unzip();
        take(Change::Services(services))?;
        take(Change::Slices(slices))?;
    }
    let mut flags = Vec::new();
    for (f, flag) in raw.flags.into_iter().flatten().enumerate() {
        flags.push(reader.flag(f, flag, &flags).map_err(refused)?);
    }
    flags.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(ClusterView { flags, source: NAME, ..builder.view() })
}

/// The reader's error for a text that it could not read. Reads the text once more: tracking the path costs time that files
/// without errors need not spend.
fn unreadable(text: &str) -> Problem {
    let mut path = String::new();
    let again = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |reader| {
        serde_path_to_error::deserialize::<_, RawFile>(reader).map_err(|error| {
            path = error.path().to_string();
            error.into_inner()
        })
    });
    let message = match &again {
        Err(error) => error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter),
        Ok(_) => "cannot be read".to_owned(),
    };
    // `.` is no place: the text as a whole is wrong.
    let field = Some(path).filter(|path| !path.is_empty() && path != ".");
    Problem::Invalid(field.map_or(message.clone(), |field| format!("{field}: {message}")))
}

/// What is wrong with a field, with its place as the reader says it.
fn invalid(text: &str, field: &str, message: &str) -> Problem {
    let place = locate(text, field);
    let place = place.map(|place| format!(" at line {}, column {}", place.line(), place.column()));
    Problem::Invalid(format!("{field}: {message}{}", place.unwrap_or_default()))
}
