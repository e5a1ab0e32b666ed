//! From an integer to the text that people write.

use jiff::Timestamp;
use serde_json::{Number, Value};

/// Fields that people write in another form than the API answers with.
const FORMS: [(&str, &str, Form); 14] = [
    ("guaranteed_milli", "guaranteed", Form::Thousandths),
    ("guaranteed_units_milli", "guaranteed_units", Form::Thousandths),
    ("limit_milli", "limit", Form::Thousandths),
    ("units_limit_milli", "units_limit", Form::Thousandths),
    ("guaranteed_memory_mib", "guaranteed_memory", Form::Memory),
    ("memory_limit_mib", "memory_limit", Form::Memory),
    ("from_ms", "from", Form::Moment),
    ("until_ms", "until", Form::Moment),
    ("percent_milli", "percent", Form::Thousandths),
    ("wait_us", "wait", Form::Wait),
    ("attained_ppm", "attained", Form::Percent),
    ("credit_ppm", "credit", Form::Percent),
    // Of prices, which have a meter, and of budgets.
    ("micro", "price", Form::Millionths),
    ("micro", "amount", Form::Millionths),
];

#[derive(Clone, Copy)]
enum Form {
    Thousandths,
    Millionths,
    Memory,
    Moment,
    Wait,
    Percent,
}

/// What is declared, or a part of it, in the form in which people write it: `limit: 0.5` for
/// `limit_milli: 500`. It is read as the same.
pub fn as_written(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(as_written).collect(),
        Value::Object(object) => {
            let is_price = object.contains_key("meter");
            let field = |(name, value): (&String, &Value)| {
                let form = FORMS.iter().find(|(exact, written, _)| {
                    exact == name && (*exact != "micro" || (*written == "price") == is_price)
                });
                match form.zip(value.as_u64()) {
                    Some(((_, written, form), number)) => ((*written).to_owned(), form.write(number)),
                    None => (name.clone(), as_written(value)),
                }
            };
            Value::Object(object.iter().map(field).collect())
        }
        other => other.clone(),
    }
}

impl Form {
    fn write(self, number: u64) -> Value {
        // A number that a float holds exactly to its last digit is written as one.
        let is_exact =
            |float: f64, text: &str| Number::from_f64(float).is_some_and(|number| number.to_string() == text);
        let decimal = |text: String| match (text.parse::<u64>(), text.parse::<f64>()) {
            (Ok(whole), _) => Value::from(whole),
            (_, Ok(float)) if is_exact(float, &text) => Value::from(float),
            _ => Value::from(text),
        };
        match self {
            Form::Thousandths => decimal(decimal_text(number, 3)),
            Form::Millionths => decimal(decimal_text(number, 6)),
            Form::Memory => Value::from(match number {
                0 => "0MiB".to_owned(),
                mib if mib % 1024 == 0 => format!("{}GiB", mib / 1024),
                mib => format!("{mib}MiB"),
            }),
            Form::Moment => Value::from(moment(number)),
            Form::Wait => Value::from(wait_text(number)),
            Form::Percent => Value::from(percent(number)),
        }
    }
}

/// Millionths as a decimal number without digits that say nothing.
pub fn money(micro: u64) -> String {
    decimal_text(micro, 6)
}

/// Thousandths as a decimal number, in the same way.
pub fn thousandths(milli: u64) -> String {
    decimal_text(milli, 3)
}

/// Millionths as a percentage, such as `99.5%`.
pub fn percent(ppm: u64) -> String {
    format!("{}%", decimal_text(ppm, 4))
}

/// Microseconds in the largest unit that writes them with three digits after the point, such as
/// `20ms`.
pub fn wait_text(us: u64) -> String {
    match us {
        0..1000 => format!("{us}us"),
        1000..1_000_000 => format!("{}ms", decimal_text(us, 3)),
        _ if us.is_multiple_of(1000) => format!("{}s", decimal_text(us / 1000, 3)),
        _ => format!("{}ms", decimal_text(us, 3)),
    }
}

fn decimal_text(number: u64, digits: usize) -> String {
    let unit = 10_u64.pow(digits as u32);
    let text = format!("{}.{:0digits$}", number / unit, number % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A moment as [`moment_ms`] reads it: a day where it is the beginning of one in UTC.
pub fn moment(at_ms: u64) -> String {
    let Some(at) = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()) else {
        return format!("{at_ms} ms after 1970");
    };
    let text = at.to_string();
    text.strip_suffix("T00:00:00Z").map_or(text.clone(), str::to_owned)
}
