import { Island } from "../lib/island";

const THEMES = ["auto", "light", "dark"] as const;
const YEAR_SECONDS = 31_536_000;

/** Radio buttons for the theme. A cookie keeps it, so that the server draws the next page in it from the start. */
export class Theme extends Island {
  override connect(): void {
    this.element.addEventListener("change", (event) => {
      const chosen = event.target instanceof HTMLInputElement ? event.target.value : "auto";
      const theme = THEMES.find((name) => name === chosen) ?? "auto";
      document.documentElement.dataset.theme = theme;
      document.cookie = `theme=${theme}; path=/; max-age=${YEAR_SECONDS}; samesite=lax`;
    });
  }
}
