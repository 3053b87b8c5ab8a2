//! Text inside of HTML and SVG.

use std::fmt;

/// Text that is shown as it is, in elements and in quoted attributes.
pub(super) struct Text<'a>(pub(super) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                // No control character may be in XML.
                c if c.is_control() && c != '\n' => f.write_str("\u{fffd}")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        assert_eq!(Text("a<b>&\"\u{1}").to_string(), "a&lt;b&gt;&amp;&quot;\u{fffd}");
    }
}
