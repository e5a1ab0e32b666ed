//! Reads `driver.api`. An error names its line.

use std::collections::HashSet;

use anyhow::{Context, bail, ensure};

use super::declaration::*;

pub(crate) fn declarations(text: &str) -> anyhow::Result<Declarations> {
    let mut api = Declarations { functions: Vec::new(), messages: Vec::new() };
    let mut section = String::new();
    for (number, line) in joined_lines(text) {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.to_string();
        } else if let Some(message) = line.strip_prefix("message ") {
            api.messages.push(self::message(message).with_context(|| format!("line {number}: {line}"))?);
        } else if !line.is_empty() && !line.starts_with('#') {
            let function = function(&line, &section).with_context(|| format!("line {number}: {line}"))?;
            api.functions.push(function);
        }
    }
    check(&api)?;
    Ok(api)
}

/// The lines with their numbers, each joined with the indented ones that follow it.
fn joined_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        match lines.last_mut() {
            Some((_, last)) if line.starts_with(' ') && !last.starts_with('#') => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => lines.push((index + 1, line.trim_end().to_string())),
        }
    }
    lines
}

fn function(line: &str, section: &str) -> anyhow::Result<Function> {
    let (name, rest) = line.split_once('(').context("a declaration is NAME(PARAMETERS) CLASS @VERSION")?;
    let (parameters, rest) = rest.split_once(')').context("the parameters have no end")?;
    let (rest, by) = with_delegate(rest);
    let (head, message) = match rest.split_once(" sends ") {
        Some((head, message)) => (head, Some(fields(message)?)),
        None => (rest, None),
    };
    let (class, versions) = head.split_once('@').context("the version is missing")?;
    let mut versions = versions.split_whitespace();
    let version = match versions.next() {
        Some("-") => None,
        Some(number) => Some(number.parse()?),
        None => bail!("the version is missing"),
    };
    let variant = versions.next().map(variant).transpose()?;
    let parameters = match parameters {
        "..." => None,
        text => Some(split(text).map(parameter).collect::<anyhow::Result<Vec<_>>>()?),
    };
    let (class, kind) = with_kind(class.trim());
    let (class, is_guarded) = suffixed(class, " guarded");
    let (class, is_kept) = suffixed(class, " kept");
    let (class, is_constant) = suffixed(class, " constant");
    let class = self::class(class)?;
    let kind = match class.travels() {
        true => Some(command_kind(name, kind, class.waits())?),
        false => {
            ensure!(kind.is_empty(), "{name} does not travel, so it has no kind `{kind}`");
            None
        }
    };
    let has_executor = class.travels() && (is_kept || !class.is_generated());
    let delegate = if has_executor { delegate(name, by)? } else { None };
    ensure!(has_executor || by.is_none(), "{name}: only a custom or kept command has a `by`");
    let (section, name) = (section.into(), name.into());
    Ok(Function {
        section,
        name,
        parameters,
        class,
        version,
        variant,
        message,
        is_guarded,
        is_kept,
        is_constant,
        kind,
        delegate,
    })
}

/// What comes before ` by DELEGATE`, and that.
fn with_delegate(text: &str) -> (&str, Option<&str>) {
    match text.trim_start().starts_with("absent") {
        // Its reason may contain anything.
        true => (text, None),
        false => text.rsplit_once(" by ").map_or((text, None), |(rest, by)| (rest, Some(by))),
    }
}

/// `hand`, or `PATH(ARGUMENTS)`.
fn delegate(name: &str, by: Option<&str>) -> anyhow::Result<Option<Delegate>> {
    let by = by.with_context(|| {
        format!("{name} is executed by the worker's own code: it needs `by PATH(ARGUMENTS)` or `by hand`")
    })?;
    if by == "hand" {
        return Ok(None);
    }
    let call = by.strip_suffix(')').and_then(|call| call.split_once('('));
    let (path, arguments) =
        call.with_context(|| format!("{name}: `by {by}` is neither `by hand` nor `by PATH(ARGUMENTS)`"))?;
    ensure!(path.contains("::"), "{name}: `{path}` is no path in the worker's crate");
    Ok(Some(Delegate { path: path.into(), arguments: split(arguments).map(String::from).collect() }))
}

/// The class, and the words of the command's kind that follow it.
fn with_kind(text: &str) -> (&str, &str) {
    match text.starts_with("absent") {
        // Its reason may contain anything.
        true => (text, ""),
        false => text.split_once(", ").unwrap_or((text, "")),
    }
}

/// The kind of a command: an effect, and whether a queued one is `transient` or `lasting`.
fn command_kind(name: &str, words: &str, waits: bool) -> anyhow::Result<CommandKind> {
    let names = Effect::ALL.map(|(name, _)| name).join(", ");
    ensure!(!words.is_empty(), "{name} needs its kind after its class: one of {names}");
    let (effect, fate) = words.split_once(", ").map_or((words, None), |(effect, fate)| (effect, Some(fate)));
    let effect = Effect::ALL.into_iter().find(|(name, _)| *name == effect);
    let (_, effect) = effect.with_context(|| format!("{name}: the kind is one of {names}, not `{words}`"))?;
    let is_transient = match fate {
        None if waits => None,
        Some("transient") if !waits => Some(true),
        Some("lasting") if !waits => Some(false),
        _ if waits => bail!("{name} waits: only a queued command is `transient` or `lasting`"),
        _ => bail!("{name} is queued: after `, {words}` it needs `, transient` or `, lasting`"),
    };
    let fits = match effect {
        Effect::Quick | Effect::Ordered => waits,
        Effect::Holds => !waits,
        _ => true,
    };
    ensure!(fits, "{name}: `quick` and `ordered` are for commands that wait, `holds` for queued ones");
    Ok(CommandKind { effect, is_transient })
}

/// A text without a suffix, and whether it had it.
fn suffixed<'a>(text: &'a str, suffix: &str) -> (&'a str, bool) {
    text.strip_suffix(suffix).map_or((text, false), |rest| (rest, true))
}

fn variant(word: &str) -> anyhow::Result<Variant> {
    let (suffix, version) = match word.split_once('@') {
        Some((suffix, version)) => (suffix, Some(version.parse()?)),
        None => (word, None),
    };
    let suffix =
        ["ptds", "ptsz"].into_iter().find(|known| *known == suffix).context("a variant is ptds or ptsz")?;
    Ok(Variant { suffix, version })
}

fn class(text: &str) -> anyhow::Result<Class> {
    let reason_of = |class| text.strip_prefix(class)?.strip_prefix(" \"")?.strip_suffix('"');
    if let Some(reason) = reason_of("absent") {
        return Ok(Class::Absent(reason.into()));
    }
    if let Some(name) = text.strip_prefix("custom via ") {
        return Ok(Class::Via(name.into()));
    }
    Ok(match text {
        "local" => Class::Local,
        "queued" => Class::Queued,
        "waiting" => Class::Waiting,
        "custom queued" => Class::CustomQueued,
        "custom waiting" => Class::CustomWaiting,
        _ => bail!("`{text}` is no class"),
    })
}

fn parameter(text: &str) -> anyhow::Result<Parameter> {
    let (name, kind) = text.split_once(": ").context("a parameter is NAME: KIND")?;
    let (kind, limit) = limit(kind)?;
    Ok(Parameter { name: name.into(), kind: self::kind(kind), limit })
}

/// What comes before ` & BITS` or ` in FIRST..LAST`, and that.
fn limit(text: &str) -> anyhow::Result<(&str, Option<Limit>)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).with_context(|| format!("`{text}` is no number")),
        None => text.parse().with_context(|| format!("`{text}` is no number")),
    };
    if let Some((kind, bits)) = text.split_once(" & ") {
        return Ok((kind, Some(Limit::Bits(number(bits)?))));
    }
    match text.split_once(" in ") {
        Some((kind, range)) => {
            let (first, last) = range.split_once("..").context("a range is FIRST..LAST")?;
            Ok((kind, Some(Limit::Range(number(first)?, number(last)?))))
        }
        None => Ok((text, None)),
    }
}

fn kind(text: &str) -> Kind {
    let array = |text: &str| {
        let (of, length) = text.strip_suffix(']')?.split_once('[')?;
        Some((of.to_string(), self::length(length)))
    };
    if text.starts_with('*') {
        return Kind::Raw(text.into());
    }
    match text.split_once(' ') {
        Some(("new", handle)) => return Kind::New(handle.into()),
        Some(("del", handle)) => return Kind::Del(handle.into()),
        Some(("out", of)) => {
            return match array(of) {
                Some((_, length)) => Kind::OutBytes(length),
                None => Kind::Out { of: of.into(), optional: false },
            };
        }
        Some(("inout", of)) => return Kind::InOut(of.into()),
        Some(("out?", of)) => return Kind::Out { of: of.into(), optional: true },
        Some(("in", of)) => {
            return match array(of) {
                Some((of, length)) if of == "bytes" => Kind::InBytes(length),
                Some((of, length)) => Kind::InArray(of, length),
                None => Kind::In(of.into()),
            };
        }
        _ => {}
    }
    match array(text) {
        Some((_, length)) => Kind::Address(length),
        None if text == "cstr" => Kind::CStr,
        None if handle_type(text).is_some() => Kind::Use(text.into()),
        None => Kind::Value(text.into()),
    }
}

/// `N * 4`, `N - 1`, or `HEIGHT of WIDTH * 4 by PITCH`.
fn length(text: &str) -> Length {
    let product = |text: &str| text.split(" * ").map(str::to_string).collect::<Product>();
    let rows = |text: &str| {
        let (count, rest) = text.split_once(" of ")?;
        let (length, pitch) = rest.split_once(" by ")?;
        Some(Length::Rows { count: product(count), length: product(length), pitch: product(pitch) })
    };
    let less = |text: &str| {
        let (name, number) = text.split_once(" - ")?;
        Some(Length::Less(name.into(), number.parse().ok()?))
    };
    rows(text).or_else(|| less(text)).unwrap_or_else(|| Length::Product(product(text)))
}

fn message(line: &str) -> anyhow::Result<Message> {
    let (line, by) = with_delegate(line);
    let (head, rest) = line.split_once(" sends ").context("a message is NAME CLASS sends (FIELDS)")?;
    let (name, class) = head.split_once(' ').context("the class is missing")?;
    let (class, kind) = with_kind(class.trim());
    let waits = match class {
        "queued" => false,
        "waiting" => true,
        other => bail!("`{other}` is no class of a message"),
    };
    let kind = command_kind(name, kind, waits)?;
    let delegate = delegate(name, by)?;
    Ok(Message { name: name.into(), waits, kind, delegate, fields: fields(rest)? })
}

/// `(name: type, ...)`, then perhaps `replies (name: type, ...)`.
fn fields(text: &str) -> anyhow::Result<Fields> {
    let list = |text: &str| {
        let inner = text
            .trim()
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
            .context("fields stand in ()")?;
        split(inner)
            .map(|field| {
                let (name, of) = field.split_once(": ").context("a field is NAME: TYPE")?;
                Ok((name.to_string(), of.trim_start_matches("new ").to_string()))
            })
            .collect::<anyhow::Result<Vec<_>>>()
    };
    match text.split_once(" replies ") {
        Some((sends, replies)) => Ok(Fields { sends: list(sends)?, replies: list(replies)? }),
        None => Ok(Fields { sends: list(text)?, replies: Vec::new() }),
    }
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(", ").filter(|part| !part.is_empty())
}

/// What no single line can get wrong.
fn check(api: &Declarations) -> anyhow::Result<()> {
    let mut names = HashSet::new();
    for function in &api.functions {
        let name = &function.name;
        ensure!(names.insert(name.as_str()), "{name} is declared twice");
        let plain_pointer = function.parameters.iter().flatten().any(|p| matches!(p.kind, Kind::Raw(_)));
        let message_from_parameters = function.class.travels() && function.message.is_none();
        ensure!(!(message_from_parameters && plain_pointer), "{name} travels, but a plain pointer cannot");
        ensure!(
            !function.class.is_generated() || function.message.is_none(),
            "{name}: `sends` is for custom ones"
        );
        ensure!(
            function.class.is_generated() || !(function.is_guarded || function.is_kept),
            "{name}: only generated stubs are `guarded`, and only what is generated can be `kept`"
        );
        let functions = function.parameters_of(&Kind::Use("Function".into())).count();
        ensure!(
            !function.is_constant || (function.class == Class::Waiting && functions <= 1),
            "{name}: only `waiting` can be `constant`, and about one function"
        );
        ensure!(
            function.class.waits() || function.fields_or_none().is_none_or(|f| f.replies.is_empty()),
            "{name} has an answer but does not wait for it"
        );
        ensure!(
            function.parameters.is_some() || matches!(function.class, Class::Absent(_)),
            "{name} needs its parameters"
        );
    }
    let functions = api.functions.iter().filter_map(|f| Some((&f.name, f.delegate.as_ref()?, f.fields())));
    let messages =
        api.messages.iter().filter_map(|m| Some((&m.name, m.delegate.as_ref()?, m.fields.clone())));
    for (name, delegate, fields) in functions.chain(messages) {
        let is_sent = |field: &str| fields.sends.iter().any(|(name, _)| name == field);
        let unknown = delegate.fields().find(|field| !is_sent(field));
        ensure!(unknown.is_none(), "{name} has no field `{}` for its delegate", unknown.unwrap_or_default());
        ensure!(
            !fields.replies.is_empty() || !delegate.replies(),
            "{name} has no answer that its delegate could encode"
        );
    }
    for function in &api.functions {
        if let Class::Via(target) = &function.class {
            let target = api.functions.iter().find(|f| f.name == *target);
            ensure!(
                target.is_some_and(|f| f.class.travels()),
                "{} goes via a function that travels",
                function.name
            );
        }
    }
    Ok(())
}

impl Function {
    fn fields_or_none(&self) -> Option<Fields> {
        self.class.travels().then(|| self.fields())
    }
}

#[cfg(test)]
mod tests;
