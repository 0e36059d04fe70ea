// What pages tell their scripts, for the checks of types: shell.py writes most of it.
interface Window {
  RAM: any;
  RAM_SHAPES: string[];
  RAM_FIGURES: string | null;
  RAM_SCRIPTS: string[];
  RAM_BOOT: () => void;
  RAM_ENTERED: boolean;
}
