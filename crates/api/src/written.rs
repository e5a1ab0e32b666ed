//! Amounts and times as people write them in declarations, beside the integers that the API answers
//! with: `limit: 0.5` for `limit_milli: 500`, `price: 2.00` for `micro: 2000000`,
//! `from: 2026-12-01` for `from_ms: 1796083200000`.
//!
//! All of it is exact: digits are never made floating point. YAML's numbers arrive here as their
//! text; in JSON that is not read as YAML they have to be texts.

use std::fmt::Display;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::{Number, Value};

use crate::bill::{Budget, BudgetEnd, BudgetPeriod, Meter, Price, PricePer};
use crate::invoice::Tax;
use crate::pool::{PoolPrice, Tier, Window};
use crate::tenant::Quota;

/// Reads a time such as `30min` or `1h`, or a number of milliseconds.
pub(crate) fn time_ms<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    match Option::<Written>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Written::Number(ms)) => Ok(Some(ms)),
        Some(Written::Text(text)) => parse_time_ms(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

fn parse_time_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no time such as 90s, 30min or 2h");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 24 * 3_600_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(unit_ms).ok_or_else(wrong)
}

/// What is wrong about something written, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrittenError {
    #[error("{0} and {1} are both there, and say the same thing: leave one out")]
    Twice(&'static str, &'static str),
    #[error("neither {0} nor {1} is there")]
    Missing(&'static str, &'static str),
    #[error("{field}: {text:?} is no {what}")]
    Text { field: &'static str, text: String, what: String },
    #[error("{field}: {text:?} is more than anybody has")]
    TooMuch { field: &'static str, text: String },
}

/// What a tenant may hold, all tenants below it included.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenQuota {
    /// GPUs that are this tenant's whenever it asks for them, such as 0.5.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,3})?$", examples("0.5")))]
    guaranteed: Option<String>,
    /// Guaranteed GPUs, in thousandths.
    guaranteed_milli: Option<u32>,
    /// Units that are. Once any tenant is guaranteed units, whoever is guaranteed anything says how
    /// many: guaranteed is what is within all that is said.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,9}(\\.[0-9]{1,3})?$", examples("40")))]
    guaranteed_units: Option<String>,
    /// Guaranteed units, in thousandths.
    guaranteed_units_milli: Option<u64>,
    /// Device memory that is, over all GPUs; as with units.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6} ?[MGT]iB$", examples("64GiB")))]
    guaranteed_memory: Option<String>,
    /// Guaranteed memory, in MiB.
    guaranteed_memory_mib: Option<u64>,
    /// The most GPUs that it may hold.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,3})?$", examples("1.5")))]
    limit: Option<String>,
    /// Limit of GPUs, in thousandths.
    limit_milli: Option<u32>,
    /// The most units that it may hold.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,9}(\\.[0-9]{1,3})?$", examples("160")))]
    units_limit: Option<String>,
    /// Limit of units, in thousandths.
    units_limit_milli: Option<u64>,
    /// Its part of what is left over, in proportion to its siblings' weights; 0 for none. 1 unless
    /// said.
    #[serde(default = "weight_of_one")]
    over_quota_weight: u32,
    /// The most device memory that it may hold, over all GPUs.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6} ?[MGT]iB$", examples("64GiB")))]
    memory_limit: Option<String>,
    /// Limit of memory, in MiB.
    memory_limit_mib: Option<u64>,
    /// The most leases it may hold at a time.
    leases_limit: Option<u32>,
}

fn weight_of_one() -> u32 {
    1
}

impl TryFrom<WrittenQuota> for Quota {
    type Error = WrittenError;

    fn try_from(written: WrittenQuota) -> Result<Quota, WrittenError> {
        let milli = |written, exact| either(written, exact, |text| decimal(text, 3));
        let memory = |written, exact| either(written, exact, memory_mib);
        Ok(Quota {
            guaranteed_milli: either_small(
                ("guaranteed", written.guaranteed),
                ("guaranteed_milli", written.guaranteed_milli),
            )?
            .unwrap_or(0),
            guaranteed_units_milli: milli(
                ("guaranteed_units", written.guaranteed_units),
                ("guaranteed_units_milli", written.guaranteed_units_milli),
            )?
            .unwrap_or(0),
            guaranteed_memory_mib: memory(
                ("guaranteed_memory", written.guaranteed_memory),
                ("guaranteed_memory_mib", written.guaranteed_memory_mib),
            )?
            .unwrap_or(0),
            limit_milli: either_small(("limit", written.limit), ("limit_milli", written.limit_milli))?,
            units_limit_milli: milli(
                ("units_limit", written.units_limit),
                ("units_limit_milli", written.units_limit_milli),
            )?,
            over_quota_weight: written.over_quota_weight,
            memory_limit_mib: memory(
                ("memory_limit", written.memory_limit),
                ("memory_limit_mib", written.memory_limit_mib),
            )?,
            leases_limit: written.leases_limit,
        })
    }
}

/// What a tenant and all below it may spend in a period.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenBudget {
    /// In the currency's unit, such as 5000 or 12.50. This or `micro` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,9}(\\.[0-9]{1,6})?$", examples("5000")))]
    amount: Option<String>,
    /// The same in millionths.
    micro: Option<u64>,
    per: BudgetPeriod,
    /// What happens once it is spent.
    #[serde(default)]
    then: BudgetEnd,
}

impl TryFrom<WrittenBudget> for Budget {
    type Error = WrittenError;

    fn try_from(written: WrittenBudget) -> Result<Budget, WrittenError> {
        let WrittenBudget { amount, micro, per, then } = written;
        Ok(Budget { micro: money_of("amount", amount, micro)?, per, then })
    }
}

/// A price; it holds from a moment until the next price for the same things, or until its own end.
///
/// Of several that fit, the one that names the most of tier, pool and model counts; of these the
/// one per unit-hour, which is for GPUs that have units; and of these the latest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenPrice {
    meter: Meter,
    /// For this tier only.
    tier: Option<Tier>,
    /// For this pool only.
    pool: Option<String>,
    /// For GPUs of this model only, as the driver names it.
    model: Option<String>,
    #[serde(default)]
    per: PricePer,
    /// In the currency's unit per GPU-hour, unit-hour, GiB-hour or GiB, such as 2.00. This or
    /// `micro` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,6})?$", examples("2.00")))]
    price: Option<String>,
    /// The same in millionths.
    micro: Option<u64>,
    /// From when on, such as 2026-12-01 (its midnight, UTC) or 2026-12-01T08:30:00Z; the moment of
    /// its declaration unless said. Prices of the past cannot be changed.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2026-12-01"))
    )]
    from: Option<String>,
    /// The same in milliseconds since 1970.
    from_ms: Option<u64>,
    /// Until before when.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2027-01-01"))
    )]
    until: Option<String>,
    /// The same in milliseconds since 1970.
    until_ms: Option<u64>,
}

impl TryFrom<WrittenPrice> for Price {
    type Error = WrittenError;

    fn try_from(written: WrittenPrice) -> Result<Price, WrittenError> {
        Ok(Price {
            meter: written.meter,
            tier: written.tier,
            pool: written.pool,
            model: written.model,
            per: written.per,
            micro: money_of("price", written.price, written.micro)?,
            from_ms: either(("from", written.from), ("from_ms", written.from_ms), moment_ms)?,
            until_ms: either(("until", written.until), ("until_ms", written.until_ms), moment_ms)?,
        })
    }
}

/// A price in a pool while a personality is in force. Of several that fit, the one that names the
/// most of tier and model counts, and of these the one per unit-hour, which is for GPUs that have
/// units.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenPoolPrice {
    meter: Meter,
    /// For this tier only.
    tier: Option<Tier>,
    /// For GPUs of this model only, as the driver names it.
    model: Option<String>,
    #[serde(default)]
    per: PricePer,
    /// In the currency's unit per GPU-hour, unit-hour, GiB-hour or GiB, such as 2.00. This or
    /// `micro` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,6})?$", examples("2.00")))]
    price: Option<String>,
    /// The same in millionths.
    micro: Option<u64>,
}

impl TryFrom<WrittenPoolPrice> for PoolPrice {
    type Error = WrittenError;

    fn try_from(written: WrittenPoolPrice) -> Result<PoolPrice, WrittenError> {
        let WrittenPoolPrice { meter, tier, model, per, price, micro } = written;
        Ok(PoolPrice { meter, tier, model, per, micro: money_of("price", price, micro)? })
    }
}

/// A tax with its rate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenTax {
    /// Such as `VAT`.
    name: String,
    /// Such as 19 or 7.5. This or `percent_milli` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,3}(\\.[0-9]{1,3})?$", examples("19")))]
    percent: Option<String>,
    /// The same in thousandths.
    percent_milli: Option<u32>,
}

impl TryFrom<WrittenTax> for Tax {
    type Error = WrittenError;

    fn try_from(written: WrittenTax) -> Result<Tax, WrittenError> {
        let rate = either_small(("percent", written.percent), ("percent_milli", written.percent_milli))?;
        let percent_milli = rate.ok_or(WrittenError::Missing("percent", "percent_milli"))?;
        if percent_milli > 100_000 {
            return Err(WrittenError::TooMuch { field: "percent", text: thousandths(percent_milli.into()) });
        }
        Ok(Tax { name: written.name, percent_milli })
    }
}

/// From a moment until before another, each in one of its two forms.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenWindow {
    /// Such as 2026-12-01 (its midnight, UTC) or 2026-12-01T08:30:00+01:00.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2026-12-01"))
    )]
    from: Option<String>,
    /// The same in milliseconds since 1970.
    from_ms: Option<u64>,
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2026-12-24"))
    )]
    until: Option<String>,
    /// The same in milliseconds since 1970.
    until_ms: Option<u64>,
}

impl TryFrom<WrittenWindow> for Window {
    type Error = WrittenError;

    fn try_from(written: WrittenWindow) -> Result<Window, WrittenError> {
        let from_ms = either(("from", written.from), ("from_ms", written.from_ms), moment_ms)?;
        let until_ms = either(("until", written.until), ("until_ms", written.until_ms), moment_ms)?;
        Ok(Window {
            from_ms: from_ms.ok_or(WrittenError::Missing("from", "from_ms"))?,
            until_ms: until_ms.ok_or(WrittenError::Missing("until", "until_ms"))?,
        })
    }
}

fn money_of(field: &'static str, text: Option<String>, micro: Option<u64>) -> Result<u64, WrittenError> {
    let micro = either((field, text), ("micro", micro), |text| decimal(text, 6))?;
    micro.ok_or(WrittenError::Missing(field, "micro"))
}

/// A field with its name.
type Named<T> = (&'static str, Option<T>);

/// What is said, in one form or the other.
fn either<T, E: Display>(
    (field, text): Named<String>,
    (exact_field, exact): Named<T>,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, WrittenError> {
    match (text, exact) {
        (Some(_), Some(_)) => Err(WrittenError::Twice(field, exact_field)),
        (None, exact) => Ok(exact),
        (Some(text), None) => {
            let wrong =
                |what: E| WrittenError::Text { field, text: shortened(&text), what: what.to_string() };
            read(&text).map(Some).map_err(wrong)
        }
    }
}

/// Of thousandths that 32 bits hold.
fn either_small(
    written: Named<String>,
    (exact_field, exact): Named<u32>,
) -> Result<Option<u32>, WrittenError> {
    let (field, text) = (written.0, written.1.as_deref().unwrap_or_default().to_owned());
    let milli = either(written, (exact_field, exact.map(u64::from)), |text| decimal(text, 3))?;
    let too_much = |_| WrittenError::TooMuch { field, text: shortened(&text) };
    milli.map(|milli| u32::try_from(milli).map_err(too_much)).transpose()
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// What a text should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("number such as 12 or 2.5, with up to {digits} digits after the point")]
    Decimal { digits: usize },
    #[error("amount of memory in whole MiB, such as 512MiB, 64GiB or 1.5TiB")]
    Memory,
    #[error("date such as 2026-12-01, nor a time such as 2026-12-01T08:30:00Z, since 1970")]
    Moment,
}

/// A decimal number without a sign in units of its last digit: of three, `0.5` is 500.
pub fn decimal(text: &str, digits: usize) -> Result<u64, TextError> {
    let wrong = TextError::Decimal { digits };
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let numeric = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !numeric(whole) || !numeric(part) || part.len() > digits {
        return Err(wrong);
    }
    format!("{whole}{part:0<digits$}").parse().map_err(|_| wrong)
}

/// `64GiB`, in MiB.
fn memory_mib(text: &str) -> Result<u64, TextError> {
    const DIGITS: usize = 6;
    let units = [("MiB", 1), ("GiB", 1 << 10), ("TiB", 1 << 20)];
    let split = units.iter().find_map(|&(unit, mib)| Some((text.strip_suffix(unit)?.trim_end(), mib)));
    let (number, unit_mib) = split.ok_or(TextError::Memory)?;
    let millionths = decimal(number, DIGITS).map_err(|_| TextError::Memory)?;
    let millionths = u128::from(millionths) * unit_mib;
    let mib = millionths / 1_000_000;
    let is_whole = mib * 1_000_000 == millionths;
    u64::try_from(mib).ok().filter(|_| is_whole).ok_or(TextError::Memory)
}

/// Milliseconds since 1970 of a day's beginning in UTC, `2026-12-01`, or of a time as of RFC 3339,
/// `2026-12-01T08:30:00+01:00`.
pub fn moment_ms(text: &str) -> Result<u64, TextError> {
    let midnight = |date: Date| date.to_zoned(TimeZone::UTC).map(|midnight| midnight.timestamp());
    // Not `parse`, which would read a date from a time as well, and ignore the rest.
    let parsed = text.parse::<Timestamp>().or_else(|_| Date::strptime("%Y-%m-%d", text).and_then(midnight));
    parsed.ok().and_then(|at| u64::try_from(at.as_millisecond()).ok()).ok_or(TextError::Moment)
}

/// Fields that people write in another form than the API answers with.
const FORMS: [(&str, &str, Form); 11] = [
    ("guaranteed_milli", "guaranteed", Form::Thousandths),
    ("guaranteed_units_milli", "guaranteed_units", Form::Thousandths),
    ("limit_milli", "limit", Form::Thousandths),
    ("units_limit_milli", "units_limit", Form::Thousandths),
    ("guaranteed_memory_mib", "guaranteed_memory", Form::Memory),
    ("memory_limit_mib", "memory_limit", Form::Memory),
    ("from_ms", "from", Form::Moment),
    ("until_ms", "until", Form::Moment),
    ("percent_milli", "percent", Form::Thousandths),
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

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn either_form_is_the_same_quota() {
        let written = json!({
            "guaranteed": "0.5", "guaranteed_units": "40.001", "guaranteed_memory": "1.5GiB", "limit": "2", "units_limit": "80",
            "memory_limit": "2 TiB", "leases_limit": 3,
        });
        let exact = json!({
            "guaranteed_milli": 500, "guaranteed_units_milli": 40_001, "guaranteed_memory_mib": 1536, "limit_milli": 2000,
            "units_limit_milli": 80_000, "memory_limit_mib": 2 << 20, "leases_limit": 3, "over_quota_weight": 1,
        });
        let quota: Quota = read(written).unwrap();
        assert_eq!(read(exact.clone()), Ok(quota.clone()));
        assert_eq!(serde_json::to_value(&quota).unwrap(), exact, "what is answered is exact");
        assert_eq!(read(json!({})), Ok(Quota::default()));
    }

    #[test]
    fn either_form_is_the_same_price_budget_and_window() {
        let written = json!({ "meter": "used", "price": "2.00", "from": "2026-12-01", "until": "2026-12-01T01:00:00+01:00" });
        let exact = json!({ "meter": "used", "micro": 2_000_000, "from_ms": 1_796_083_200_000_u64, "until_ms": 1_796_083_200_000_u64 });
        let price: Price = read(written).unwrap();
        assert_eq!(serde_json::to_value(&price).unwrap(), exact);
        assert_eq!(read(exact), Ok(price));
        let budget: Budget = read(json!({ "amount": "12.5", "per": "day" })).unwrap();
        assert_eq!(read(json!({ "micro": 12_500_000, "per": "day", "then": "hold" })), Ok(budget));
        let price: PoolPrice = read(json!({ "meter": "used", "price": "0.000001" })).unwrap();
        assert_eq!(price.micro, 1);
        let window = json!({ "from": "2026-12-01", "until_ms": 1_796_083_200_001_u64 });
        let expect = Window { from_ms: 1_796_083_200_000, until_ms: 1_796_083_200_001 };
        assert_eq!(read(window), Ok(expect));
    }

    #[test]
    fn what_is_shown_as_written_is_read_as_the_same() {
        let quota = json!({
            "guaranteed_milli": 500, "guaranteed_units_milli": 40_001, "guaranteed_memory_mib": 1536, "limit_milli": 2000,
            "memory_limit_mib": 65_536, "over_quota_weight": 1,
        });
        let quota: Quota = read(quota).unwrap();
        let shown = as_written(&serde_json::to_value(&quota).unwrap());
        assert_eq!(
            shown,
            json!({
                "guaranteed": 0.5, "guaranteed_units": 40.001, "guaranteed_memory": "1536MiB", "limit": 2,
                "memory_limit": "64GiB", "over_quota_weight": 1,
            })
        );
        let price = json!({ "meter": "used", "micro": 2_500_000, "from_ms": 1_796_083_200_000_u64, "until_ms": 1_796_083_200_500_u64 });
        let shown =
            as_written(&json!({ "prices": [price], "budget": { "micro": 1, "per": "day", "then": "hold" } }));
        assert_eq!(
            shown,
            json!({
                "prices": [{ "meter": "used", "price": 2.5, "from": "2026-12-01", "until": "2026-12-01T00:00:00.5Z" }],
                "budget": { "amount": "0.000001", "per": "day", "then": "hold" },
            })
        );
        let text = |value: &Value| match value {
            Value::Number(number) => Value::from(number.to_string()),
            other => other.clone(),
        };
        let texts =
            shown["prices"][0].as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value)));
        let read_again: Price = read(Value::Object(texts.collect())).unwrap();
        assert_eq!(read_again, read::<Price>(price).unwrap());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let quota = |value| read::<Quota>(value).unwrap_err();
        let window = |value| read::<Window>(value).unwrap_err();
        for (error, words) in [
            (quota(json!({ "limit": "1", "limit_milli": 1000 })), "limit and limit_milli are both there"),
            (quota(json!({ "limit": "0.0001" })), "limit: \"0.0001\" is no number"),
            (quota(json!({ "limit": "99999999" })), "limit: \"99999999\" is more than anybody has"),
            (quota(json!({ "guaranteed_memory": "64" })), "guaranteed_memory: \"64\" is no amount of memory"),
            (quota(json!({ "memory_limit": "0.3MiB" })), "whole MiB"),
            (quota(json!({ "limits": "1" })), "unknown field `limits`"),
            (window(json!({ "from": "2026", "until": "2027-01-01" })), "from: \"2026\" is no date"),
            (window(json!({ "from": "2026-02-30", "until": "2027-01-01" })), "from: \"2026-02-30\""),
            (window(json!({ "from": "2026-02-01" })), "neither until nor until_ms"),
            (read::<Price>(json!({ "meter": "used" })).unwrap_err(), "neither price nor micro"),
            (read::<Price>(json!({ "meter": "used", "price": "-1" })).unwrap_err(), "price: \"-1\""),
            (read::<Budget>(json!({ "amount": "1e3", "per": "ever" })).unwrap_err(), "amount: \"1e3\""),
        ] {
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn decimals_are_exact_and_bounded() {
        for (text, milli) in [
            ("0", 0),
            ("0.001", 1),
            ("0.1", 100),
            ("007.5", 7500),
            ("9007199254740993.001", 9_007_199_254_740_993_001),
        ] {
            assert_eq!(decimal(text, 3), Ok(milli), "{text}");
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "1.2.3",
            "+1",
            "-1",
            "1e3",
            " 1",
            "1,5",
            "0x1",
            "99999999999999999999",
            "\u{661}",
        ] {
            assert!(decimal(text, 3).is_err(), "{text}");
        }
    }
}
