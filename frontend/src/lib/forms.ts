/** What a person has done to the fields of a part of the page. */

/** Whether a field below `root` holds anything else than what the server wrote into it. */
export function isTouched(root: HTMLElement): boolean {
  for (const field of root.querySelectorAll("input, textarea, select")) {
    if (field instanceof HTMLSelectElement) {
      const first = [...field.options].find((option) => option.defaultSelected) ?? field.options[0];
      if (first && field.value !== first.value) return true;
    } else if (field instanceof HTMLTextAreaElement) {
      if (field.value !== field.defaultValue) return true;
    } else if (field instanceof HTMLInputElement && field.name) {
      const ticks = field.type === "checkbox" || field.type === "radio";
      if (ticks ? field.checked !== field.defaultChecked : field.value !== field.defaultValue) return true;
    }
  }
  return false;
}
