//! State machines written as transition tables.

/// Implements two functions for a state enum: `after` returns the next state, `graph` formats the
/// table as text.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Door { Open, Closed }
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Push { Shut, Pull }
///
/// rlaunch_bootstrap::transitions! {
///     Door on Push {
///         Open   + Shut => Closed,
///         Closed + Pull => Open,
///     }
/// }
/// assert_eq!(Door::Open.after(Push::Shut), Some(Door::Closed));
/// assert_eq!(Door::Open.after(Push::Pull), None);
/// ```
#[macro_export]
macro_rules! transitions {
    ($state:ident on $event:ident { $($from:ident + $on:ident => $to:ident,)* }) => {
        impl $state {
            const TRANSITIONS: &[($state, $event, $state)] =
                &[$(($state::$from, $event::$on, $state::$to),)*];

            /// Returns the next state, or `None` if `event` is not allowed in this state.
            pub fn after(self, event: $event) -> Option<$state> {
                let found = Self::TRANSITIONS.iter().find(|(from, on, _)| (*from, *on) == (self, event));
                found.map(|&(_, _, to)| to)
            }

            /// Formats the transitions, one on each line.
            pub fn graph() -> String {
                let line = |(from, on, to): &($state, $event, $state)| {
                    format!("{from:?} -- {on:?} -> {to:?}\n")
                };
                Self::TRANSITIONS.iter().map(line).collect()
            }
        }
    };
}
