mod child;
mod cli;
mod quantity;
mod surroundings;
mod table;

fn main() {
    let _ = <cli::Cli as clap::Parser>::parse();
}
