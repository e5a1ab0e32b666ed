//! Amounts and times, read and written.

use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;
use serde_json::Value;

use crate::bill::{Budget, Price};
use crate::pool::{PoolPrice, Window};
use crate::tenant::Quota;

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
        (quota(json!({ "limit": "99999999" })), "limit: \"99999999\" is more than any installation has"),
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
