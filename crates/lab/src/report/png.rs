//! Charts as PNG files: the SVG files, drawn at twice their size, for what shows no SVG.
//!
//! Letters need a font of the system. Where there is none nothing is drawn: a chart without words
//! says nothing.

use crate::Outcome;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, Query, Style};
use resvg::usvg::{Options, Tree};
use std::sync::Arc;

/// Pixels for each unit of the drawing.
const SCALE: f32 = 2.0;

/// Faces that many systems have, the best first. Without any of them, whatever there is.
const FACES: [&str; 8] =
    ["DejaVu Sans", "Noto Sans", "Liberation Sans", "Ubuntu", "Cantarell", "FreeSans", "Arial", "Helvetica"];

/// A renderer of charts as PNG.
pub(super) struct Painter {
    options: Options<'static>,
}

impl Painter {
    /// Returns a renderer with a font of this system, `None` if it has none.
    pub(super) fn new() -> Option<Self> {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        let has = |name: &str| {
            let query = Query { families: &[Family::Name(name)], ..Query::default() };
            fonts.query(&query).is_some()
        };
        let any = || {
            let plain = fonts.faces().find(|face| face.style == Style::Normal && !face.monospaced);
            plain.or(fonts.faces().next())?.families.first().map(|(name, _)| name.clone())
        };
        let face = FACES.iter().find(|name| has(name)).map(|name| (*name).to_owned()).or_else(any)?;
        fonts.set_sans_serif_family(face);
        Some(Self { options: Options { fontdb: Arc::new(fonts), ..Options::default() } })
    }

    /// Returns a drawing as the bytes of a PNG file.
    ///
    /// # Errors
    /// `svg` is not a drawing, or has no size.
    pub(super) fn paint(&self, svg: &str) -> Outcome<Vec<u8>> {
        Ok(self.pixels(svg)?.encode_png()?)
    }

    fn pixels(&self, svg: &str) -> Outcome<Pixmap> {
        let tree = Tree::from_str(svg, &self.options)?;
        let size = tree.size();
        let side = |length: f32| (length * SCALE).ceil() as u32;
        let mut pixels =
            Pixmap::new(side(size.width()), side(size.height())).ok_or("a chart without a size")?;
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        Ok(pixels)
    }
}

#[cfg(test)]
mod tests {
    use super::super::chart;
    use super::*;
    use crate::report::palette::Palette;
    use crate::report::tests::chart as example;

    #[test]
    fn lines_and_letters_are_drawn() {
        let painter = Painter::new().expect("a font; `make test` installs what it lacks");
        let svg = chart::file(&example(&[1.0, 2.0, 3.0]), &Palette::default());
        let dark = |svg: &str| {
            let pixels = painter.pixels(svg).unwrap();
            let (width, height) = (pixels.width(), pixels.height());
            assert!(width == 960 && height > 600, "{width} x {height}");
            assert!(pixels.pixels().iter().all(|p| p.alpha() == 255), "on paper");
            let ink =
                |p: &resvg::tiny_skia::PremultipliedColorU8| u16::from(p.red()) + u16::from(p.green()) < 300;
            // Of the title, of the axis' name, and of all of it.
            let row = |from: u32, to: u32| {
                pixels.pixels()[(from * width) as usize..(to * width) as usize]
                    .iter()
                    .filter(|p| ink(p))
                    .count()
            };
            [row(20, 44), row(610, 636), row(0, height)]
        };
        let drawn = dark(&svg);
        let mute = dark(&svg.replace("<text ", "<text visibility=\"hidden\" "));
        assert!(drawn[0] > 100 && drawn[1] > 50, "{drawn:?}");
        assert_eq!(mute[..2], [0, 0], "{drawn:?}, {mute:?}");
        assert!(drawn[2] > mute[2] + 500, "{drawn:?}, {mute:?}");
        // A long title is whole: nothing reaches the edge.
        let mut long = example(&[1.0, 2.0, 3.0]);
        long.title = "Wide words, MANY OF THEM, ".repeat(4);
        let pixels = painter.pixels(&chart::file(&long, &Palette::default())).unwrap();
        let mut edge = (16..44).flat_map(|y| (944..960).map(move |x| (x, y)));
        assert!(edge.all(|(x, y)| pixels.pixel(x, y).is_some_and(|p| p.red() > 250)), "the title is cut");
        assert!(painter.paint(&svg).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
        assert!(painter.paint("<html>").is_err());
    }
}
